// A mixture of experts in plain loops over all tokens of a step: what the layer is compared with. Shares no code with
// it but the names of its options.
#pragma once

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "base/random.hpp"
#include "layers/moe/options.hpp"

namespace fourfold::test {

using Numbers = std::vector<double>;

constexpr std::size_t at(Index i) {
  return static_cast<std::size_t>(i);
}

// A tensor's values by its name alone.
inline Numbers named_values(const std::string& name, Index size, double scale) {
  std::seed_seq seeds(name.begin(), name.end());
  std::mt19937_64 engine(seeds);
  std::normal_distribution<double> normal(0, scale);
  Numbers values(static_cast<std::size_t>(size));
  for (double& value : values) value = normal(engine);
  return values;
}

// Sequences x tokens, micro-batch by micro-batch, each with its row of D numbers.
struct Step {
  Index micro_batches = 1, sequences = 0, tokens = 0;  // sequences: of all micro-batches
  Numbers x, dy;                                       // sequences x tokens x D
  Index rows() const { return sequences * tokens; }
};

class MoeReference {
 public:
  MoeReference(const MoeOptions& options, Step step) : o(options), s(std::move(step)) {
    scale = 1 / std::sqrt(static_cast<double>(o.width));
  }

  MoeOptions o;
  Step s;
  double scale;
  std::map<std::string, Numbers> params;  // those that a test sets; all others by their names
  Numbers selection_bias;                 // of the experts, where they are chosen; empty: none
  Numbers y, dx;
  std::map<std::string, Numbers> gradients;
  std::vector<int> choice;  // rows x k, by score; ~e: dropped
  double aux = 0, z = 0;
  std::vector<Index> load;  // pairs that ask for an expert
  Index dropped = 0;

  const Numbers& param(const std::string& name, Index size) {
    auto [found, fresh] = params.try_emplace(name);
    if (fresh) found->second = named_values(name, size, scale);
    return found->second;
  }
  // sum <dy, y> + coefficient aux + coefficient z.
  double loss() {
    double sum = o.balance.aux * aux + o.balance.z * z;
    for (std::size_t i = 0; i < y.size(); ++i) sum += s.dy[i] * y[i];
    return sum;
  }
  void run();

 private:
  struct Scored {
    Numbers logit, score, probability;
    double lse = 0, total = 0;
  };

  Scored score(Index token);
  std::vector<int> choose(Scored scored) const;
  void drop(const std::vector<Scored>& all);
  // y of one expert, and the gradients of its parameters and of x.
  Numbers feed_forward(const std::string& name, Index hidden, const double* x, const double* dout, double* dx_row);
  // What the router reads of a token, and the factors that jitter put there.
  Numbers router_input(Index token, Numbers* factors = nullptr) const;
  void add_shared(Index token);
  Index scope_of(Index token, bool sequence, bool micro) const {
    const Index sequence_number = token / s.tokens;
    if (sequence) return sequence_number;
    return micro ? sequence_number / (s.sequences / s.micro_batches) : 0;
  }
  Numbers& gradient(const std::string& name, std::size_t size) {
    Numbers& g = gradients[name];
    g.resize(size);
    return g;
  }
};

inline Numbers MoeReference::router_input(Index token, Numbers* factors) const {
  const RandomStream stream = random_stream(0, "jitter/moe.router", 1);
  Numbers x(s.x.begin() + token * o.width, s.x.begin() + (token + 1) * o.width);
  for (Index d = 0; d < o.width; ++d) {
    const double u = stream.uniform(static_cast<std::uint64_t>(token * o.width + d));
    const double factor = 1 + o.jitter * (2 * u - 1);
    x[at(d)] *= factor;
    if (factors != nullptr) factors->push_back(factor);
  }
  return x;
}

inline MoeReference::Scored MoeReference::score(Index token) {
  const Numbers x = router_input(token);
  const Numbers& gate = param("moe.router.weight", o.experts * o.width);
  Scored r;
  for (Index e = 0; e < o.experts; ++e) {
    double sum = 0;
    for (Index d = 0; d < o.width; ++d) sum += x[at(d)] * gate[at(e * o.width + d)];
    r.logit.push_back(sum);
  }
  const double top = *std::max_element(r.logit.begin(), r.logit.end());
  double sum = 0;
  for (const double l : r.logit) sum += std::exp(l - top);
  r.lse = top + std::log(sum);
  for (const double l : r.logit)
    r.score.push_back(o.score == RouterScore::softmax ? std::exp(l - r.lse) : 1 / (1 + std::exp(-l)));
  r.total = std::accumulate(r.score.begin(), r.score.end(), 0.0);
  for (const double v : r.score) r.probability.push_back(v / r.total);
  return r;
}

inline std::vector<int> MoeReference::choose(Scored scored) const {
  for (std::size_t e = 0; e < selection_bias.size(); ++e) scored.score[e] += selection_bias[e];
  const Index size = o.experts / o.groups;
  std::vector<std::pair<double, int>> groups;  // minus its key
  for (Index g = 0; g < o.groups; ++g) {
    Numbers keys(scored.score.begin() + g * size, scored.score.begin() + (g + 1) * size);
    std::sort(keys.rbegin(), keys.rend());
    const bool two = o.score == RouterScore::sigmoid && size > 1;
    groups.emplace_back(-(two ? keys[0] + keys[1] : keys[0]), static_cast<int>(g));
  }
  std::sort(groups.begin(), groups.end());
  std::vector<std::pair<double, int>> candidates;
  for (Index i = 0; i < o.top_groups; ++i) {
    for (Index e = groups[at(i)].second * size; e < (groups[at(i)].second + 1) * size; ++e)
      candidates.emplace_back(-scored.score[at(e)], static_cast<int>(e));
  }
  std::sort(candidates.begin(), candidates.end());
  std::vector<int> best;
  for (Index slot = 0; slot < o.top_k; ++slot) best.push_back(candidates[at(slot)].second);
  return best;
}

inline void MoeReference::drop(const std::vector<Scored>& all) {
  if (o.capacity.factor == 0) return;
  const bool sequence = o.capacity.scope == CapacityScope::sequence;
  const Index scope_tokens = sequence ? s.tokens : s.rows() / s.micro_batches;
  const double exact = o.capacity.factor * static_cast<double>(scope_tokens * o.top_k) / static_cast<double>(o.experts);
  const Index capacity = static_cast<Index>(std::ceil(exact - 1e-9));
  const Index scopes = sequence ? s.sequences : s.micro_batches;
  for (Index scope = 0; scope < scopes; ++scope) {
    for (Index e = 0; e < o.experts; ++e) {
      std::vector<std::pair<double, Index>> asks;
      for (Index p = 0; p < std::ssize(choice); ++p) {
        if (choice[at(p)] != e || scope_of(p / o.top_k, sequence, true) != scope) continue;
        const bool by_score = o.capacity.priority == CapacityPriority::probability;
        asks.emplace_back(by_score ? -all[at(p / o.top_k)].score[at(e)] : 0.0, p);
      }
      std::sort(asks.begin(), asks.end());
      for (Index i = capacity; i < std::ssize(asks); ++i, ++dropped)
        choice[at(asks[at(i)].second)] = ~static_cast<int>(e);
    }
  }
}

inline Numbers MoeReference::feed_forward(const std::string& name, Index hidden, const double* x, const double* dout,
                                          double* dx_row) {
  const Index width = o.width;
  const bool glu = o.activation == ActivationType::swiglu;
  const auto product = [&](const Numbers& w, Index rows, Index cols, const double* in) {
    Numbers out(at(rows), 0);
    for (Index i = 0; i < rows; ++i)
      for (Index j = 0; j < cols; ++j) out[at(i)] += w[at(i * cols + j)] * in[j];
    return out;
  };
  const auto add_bias = [&](const std::string& which, Numbers& to) {
    if (!o.bias) return;
    const Numbers& b = param(name + which, std::ssize(to));
    for (std::size_t i = 0; i < to.size(); ++i) to[i] += b[i];
  };
  const Numbers& up_weight = param(name + ".up.weight", hidden * width);
  const Numbers& down_weight = param(name + ".down.weight", width * hidden);
  Numbers up = product(up_weight, hidden, width, x);
  add_bias(".up.bias", up);
  Numbers gate;
  if (glu) {
    gate = product(param(name + ".gate.weight", hidden * width), hidden, width, x);
    add_bias(".gate.bias", gate);
  }
  Numbers act(at(hidden)), dact_dup(at(hidden)), dact_dgate(at(hidden));
  for (std::size_t h = 0; h < act.size(); ++h) {
    const double u = up[h];
    if (glu) {
      const double sigma = 1 / (1 + std::exp(-gate[h]));
      act[h] = gate[h] * sigma * u;
      dact_dup[h] = gate[h] * sigma;
      dact_dgate[h] = u * sigma * (1 + gate[h] * (1 - sigma));
    } else if (o.activation == ActivationType::relu) {
      act[h] = std::max(u, 0.0);
      dact_dup[h] = u > 0 ? 1 : 0;
    } else {
      const double phi = 0.5 * std::erfc(-u / std::sqrt(2.0));
      act[h] = u * phi;
      dact_dup[h] = phi + u * std::exp(-u * u / 2) / std::sqrt(2 * std::acos(-1.0));
    }
  }
  Numbers out = product(down_weight, width, hidden, act.data());
  add_bias(".down.bias", out);
  Numbers& ddown = gradient(name + ".down.weight", down_weight.size());
  Numbers dhidden(at(hidden), 0);
  for (Index d = 0; d < width; ++d) {
    for (Index h = 0; h < hidden; ++h) {
      ddown[at(d * hidden + h)] += dout[d] * act[at(h)];
      dhidden[at(h)] += dout[d] * down_weight[at(d * hidden + h)];
    }
  }
  const auto back = [&](const std::string& which, const Numbers& slope) {
    const Numbers& w = param(name + which + ".weight", hidden * width);
    Numbers& dw = gradient(name + which + ".weight", w.size());
    for (Index h = 0; h < hidden; ++h) {
      const double d = dhidden[at(h)] * slope[at(h)];
      for (Index j = 0; j < width; ++j) {
        dw[at(h * width + j)] += d * x[j];
        dx_row[j] += d * w[at(h * width + j)];
      }
      if (o.bias) gradient(name + which + ".bias", at(hidden))[at(h)] += d;
    }
  };
  back(".up", dact_dup);
  if (glu) back(".gate", dact_dgate);
  if (o.bias) {
    Numbers& db = gradient(name + ".down.bias", at(width));
    for (Index d = 0; d < width; ++d) db[at(d)] += dout[d];
  }
  return out;
}

inline void MoeReference::add_shared(Index token) {
  if (o.shared_hidden == 0) return;
  const double* x = s.x.data() + token * o.width;
  const double* dy = s.dy.data() + token * o.width;
  double* dx_row = dx.data() + token * o.width;
  double open = 1;
  if (o.shared_gate) {
    const Numbers& gate = param("moe.shared_gate.weight", o.width);
    double logit = 0;
    for (Index d = 0; d < o.width; ++d) logit += x[d] * gate[at(d)];
    open = 1 / (1 + std::exp(-logit));
  }
  Numbers dout(dy, dy + o.width);
  for (double& v : dout) v *= open;
  const Numbers out = feed_forward("moe.shared", o.shared_hidden, x, dout.data(), dx_row);
  double inner = 0;
  for (Index d = 0; d < o.width; ++d) {
    y[at(token * o.width + d)] += open * out[at(d)];
    inner += dy[d] * out[at(d)];
  }
  if (!o.shared_gate) return;
  const Numbers& gate = param("moe.shared_gate.weight", o.width);
  Numbers& dgate = gradient("moe.shared_gate.weight", at(o.width));
  for (Index d = 0; d < o.width; ++d) {
    dgate[at(d)] += open * (1 - open) * inner * x[d];
    dx_row[d] += open * (1 - open) * inner * gate[at(d)];
  }
}

inline void MoeReference::run() {
  y.assign(at(s.rows() * o.width), 0);
  dx = y;
  gradients.clear();
  load.assign(at(o.experts), 0);
  choice.clear();
  aux = z = 0;
  dropped = 0;
  std::vector<Scored> all;
  for (Index t = 0; t < s.rows(); ++t) {
    all.push_back(score(t));
    std::vector<int> chosen = choose(all.back());
    for (Index slot = 0; slot < o.top_k && o.forced.kind == ForcedRouting::uniform; ++slot)
      chosen[at(slot)] = static_cast<int>((t * o.top_k + slot) % o.experts);
    for (const int e : chosen) {
      choice.push_back(e);
      ++load[at(e)];
    }
  }
  // Balance: f and P of each scope, from what was asked for.
  const bool sequence = o.balance.scope == BalanceScope::sequence;
  const bool micro = o.balance.scope == BalanceScope::micro_batch;
  const Index scopes = sequence ? s.sequences : micro ? s.micro_batches : 1;
  const double scope_tokens = static_cast<double>(s.rows()) / static_cast<double>(scopes);
  Numbers f(at(scopes * o.experts), 0), probability = f;
  for (Index t = 0; t < s.rows(); ++t) {
    const Index first = scope_of(t, sequence, micro) * o.experts;
    for (Index slot = 0; slot < o.top_k; ++slot) {
      f[at(first + choice[at(t * o.top_k + slot)])] += 1 / (static_cast<double>(o.top_k) * scope_tokens);
    }
    for (Index e = 0; e < o.experts; ++e) probability[at(first + e)] += all[at(t)].probability[at(e)] / scope_tokens;
    z += all[at(t)].lse * all[at(t)].lse / static_cast<double>(s.rows());
  }
  for (std::size_t i = 0; i < f.size(); ++i)
    aux += static_cast<double>(o.experts) * f[i] * probability[i] / static_cast<double>(scopes);
  drop(all);

  const Numbers& gate = param("moe.router.weight", o.experts * o.width);
  Numbers& dgate = gradient("moe.router.weight", gate.size());
  for (Index t = 0; t < s.rows(); ++t) {
    const Scored& scored = all[at(t)];
    const double* x = s.x.data() + t * o.width;
    const double* dy = s.dy.data() + t * o.width;
    double* dx_row = dx.data() + t * o.width;
    Numbers factors;
    const Numbers routed = router_input(t, &factors);
    double chosen_sum = 0;
    for (Index slot = 0; slot < o.top_k; ++slot) {
      const int c = choice[at(t * o.top_k + slot)];
      chosen_sum += scored.score[at(c < 0 ? ~c : c)];
    }
    // dweight / dscore by the quotient rule, entry by entry.
    Numbers dscore(at(o.experts), 0);
    for (Index slot = 0; slot < o.top_k; ++slot) {
      const int c = choice[at(t * o.top_k + slot)];
      if (c < 0) continue;
      const double weight = o.renormalize ? scored.score[at(c)] / chosen_sum : scored.score[at(c)];
      Numbers dout(dy, dy + o.width);
      for (double& v : dout) v *= weight;
      const Numbers out = feed_forward("moe.experts." + std::to_string(c), o.hidden, x, dout.data(), dx_row);
      double dweight = 0;
      for (Index d = 0; d < o.width; ++d) {
        y[at(t * o.width + d)] += weight * out[at(d)];
        dweight += dy[d] * out[at(d)];
      }
      if (!o.renormalize) {
        dscore[at(c)] += dweight;
        continue;
      }
      for (Index other = 0; other < o.top_k; ++other) {
        const int b = choice[at(t * o.top_k + other)];
        const int expert_b = b < 0 ? ~b : b;
        dscore[at(expert_b)] +=
            dweight * ((expert_b == c ? 1 / chosen_sum : 0) - scored.score[at(c)] / (chosen_sum * chosen_sum));
      }
    }
    // The loss of balance reaches the scores through probability = score / total.
    const Index first = scope_of(t, sequence, micro) * o.experts;
    Numbers dprobability(at(o.experts));
    double inner = 0;
    for (Index e = 0; e < o.experts; ++e) {
      dprobability[at(e)] = o.balance.aux * static_cast<double>(o.experts) * f[at(first + e)] /
                            (scope_tokens * static_cast<double>(scopes));
      inner += dprobability[at(e)] * scored.probability[at(e)];
    }
    for (Index e = 0; e < o.experts; ++e) dscore[at(e)] += (dprobability[at(e)] - inner) / scored.total;
    for (Index e = 0; e < o.experts; ++e) {
      double d =
          o.balance.z * 2 * scored.lse * std::exp(scored.logit[at(e)] - scored.lse) / static_cast<double>(s.rows());
      for (Index b = 0; b < o.experts; ++b) {
        const double sb = scored.score[at(b)];
        const double slope = o.score == RouterScore::softmax ? sb * ((b == e ? 1 : 0) - scored.score[at(e)])
                                                             : (b == e ? sb * (1 - sb) : 0);
        d += dscore[at(b)] * slope;
      }
      for (Index j = 0; j < o.width; ++j) {
        dgate[at(e * o.width + j)] += d * routed[at(j)];
        dx_row[j] += d * gate[at(e * o.width + j)] * factors[at(j)];
      }
    }
    add_shared(t);
  }
}

}  // namespace fourfold::test
