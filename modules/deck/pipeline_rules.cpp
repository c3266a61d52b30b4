// Rules about stages: how the model is cut, and what a schedule needs.
#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "deck/derive.hpp"
#include "deck/rules.hpp"

namespace fourfold {
namespace {

constexpr std::int64_t kMostPasses = 5'000'000;  // chunks x micro-batches; a builder's own limit

std::string units_text(const ModelDeck& model) {
  switch (model.kind) {
    case ModelKind::transformer:
      return number(unit_count(model)) + " units (embedding, " + number(model.layers) +
             (model.layers == 1 ? " block" : " blocks") + ", head)";
    case ModelKind::mlp:
      return number(unit_count(model)) + " units (its matrices)";
    case ModelKind::residual:
      return number(unit_count(model)) + " units (its blocks)";
    case ModelKind::embedding:
      break;
  }
  return "2 units (embedding, head)";
}

// "legal: 1 to 6; nearest: 6"
std::string up_to(std::int64_t most) {
  return most == 1 ? "legal: 1" : "legal: 1 to " + number(most) + "; nearest: " + number(most);
}

bool units_known(const Check& check) {
  return check.sound({"model.kind", "model.layers", "model.widths"});
}

bool has_chunks(const ParallelDeck& parallel) {
  return parallel.schedule == "interleaved" || parallel.schedule == "modular" || parallel.schedule == "list";
}

void stage_rule(const Check& check) {
  if (!check.sound({"parallel.stages"}) || !units_known(check)) return;
  const std::int64_t units = unit_count(check.deck.model);
  if (check.deck.parallel.stages > units) {
    check.add("parallel.stages", number(check.deck.parallel.stages) + " is more than the model's " +
                                     units_text(check.deck.model) + "; " + up_to(units));
  }
}

void interleave_rule(const Check& check) {
  const ParallelDeck& parallel = check.deck.parallel;
  if (!check.sound({"parallel.interleave", "parallel.schedule"}) || parallel.interleave == 1) return;
  if (!has_chunks(parallel)) {
    check.add("parallel.interleave", number(parallel.interleave) + " has no meaning for parallel.schedule " +
                                         parallel.schedule +
                                         "; type 1, or one of the schedules interleaved, modular, list");
    return;
  }
  if (!check.sound({"parallel.stages"}) || !units_known(check)) return;
  const std::int64_t units = unit_count(check.deck.model);
  if (parallel.stages <= units && parallel.stages * parallel.interleave > units) {
    check.add("parallel.interleave", number(parallel.interleave) + " x stages " + number(parallel.stages) + " = " +
                                         number(parallel.stages * parallel.interleave) +
                                         " chunks are more than the model's " + units_text(check.deck.model) + "; " +
                                         up_to(units / parallel.stages));
  }
}

// An interleaved schedule of one chunk a stage is 1f1b by another name.
void one_chunk_rule(const Check& check) {
  const ParallelDeck& parallel = check.deck.parallel;
  if (!check.sound({"parallel.interleave", "parallel.schedule", "parallel.stages"}) || !units_known(check)) return;
  if (parallel.schedule != "interleaved" || parallel.interleave > 1) return;
  const bool two = 2 * parallel.stages <= unit_count(check.deck.model);
  check.add("parallel.schedule", std::string("interleaved wants parallel.interleave of 2 or more (it is 1, which is "
                                             "schedule 1f1b); type 1f1b") +
                                     (two ? ", or parallel.interleave=2" : ""));
}

// What another schedule would need, given beside this one. No entries, or none above 0, say nothing.
void other_schedule_rules(const Check& check) {
  const ParallelDeck& parallel = check.deck.parallel;
  if (!check.sound({"parallel.schedule"})) return;
  const auto refuse = [&](const std::string& path, const std::string& schedule) {
    check.add(path, "is for parallel.schedule " + schedule + " only, and the schedule is " + parallel.schedule +
                        "; take it away, or type parallel.schedule=" + schedule);
  };
  const std::vector<std::int64_t>& extra = parallel.extra_in_flight;
  if (parallel.schedule != "geo" && std::any_of(extra.begin(), extra.end(), [](std::int64_t e) { return e > 0; })) {
    refuse("parallel.extra_in_flight", "geo");
  }
  if (parallel.schedule != "list" && !parallel.schedule_list.empty()) refuse("parallel.schedule_list", "list");
}

void cuts_rule(const Check& check) {
  const ParallelDeck& parallel = check.deck.parallel;
  if (parallel.cuts.empty() || !check.sound({"parallel.cuts", "parallel.schedule"})) return;
  if (parallel.schedule == "layered") {
    check.add("parallel.cuts",
              "has no meaning for parallel.schedule layered, which makes every unit a chunk; take it "
              "away");
    return;
  }
  if (!check.sound({"parallel.stages", "parallel.interleave"})) return;
  const std::int64_t chunks = parallel.stages * parallel.interleave;
  if (std::ssize(parallel.cuts) != chunks) {
    check.add("parallel.cuts", "has " + number(std::ssize(parallel.cuts)) + " entries for " + number(chunks) +
                                   " chunks (stages x interleave); type one each, or leave it out");
    return;
  }
  if (!units_known(check)) return;
  const std::int64_t sum = std::accumulate(parallel.cuts.begin(), parallel.cuts.end(), std::int64_t{0});
  if (sum != unit_count(check.deck.model)) {
    check.add("parallel.cuts", "sums up to " + number(sum) + ", but the model has " + units_text(check.deck.model));
  }
}

// A list with an entry a stage (or a boundary between stages) that `schedule` needs.
template <class Entry>
void needed_list(const Check& check, const std::string& schedule, const char* path, const std::vector<Entry>& list,
                 std::int64_t wanted, const std::string& each) {
  if (check.deck.parallel.schedule != schedule || !check.sound({"parallel.schedule", "parallel.stages", path})) return;
  if (std::ssize(list) == wanted) return;
  check.add(path, (list.empty() ? "must be given for " + schedule : "has " + number(std::ssize(list)) + " entries") +
                      "; type " + number(wanted) + ", one a " + each);
}

// Lists of operations are held in memory.
void length_rule(const Check& check) {
  const ParallelDeck& parallel = check.deck.parallel;
  const std::int64_t micro_batches = check.deck.batch.micro_batches;
  if (!check.sound({"parallel.stages", "parallel.interleave", "parallel.schedule", "batch.micro", "batch.global",
                    "batch.micro_batches"}) ||
      !units_known(check)) {
    return;
  }
  const std::int64_t chunks = parallel.schedule == "layered"
                                  ? unit_count(check.deck.model)
                                  : capped_product({parallel.stages, has_chunks(parallel) ? parallel.interleave : 1});
  const std::int64_t most = std::max<std::int64_t>(1, kMostPasses / chunks);
  if (micro_batches <= most || check.deck.batch.global > kMostGlobal) return;
  const bool given = check.given("batch.micro_batches");
  check.add(given ? "batch.micro_batches" : "batch.micro",
            (given ? number(micro_batches) : "gives " + number(micro_batches)) + " micro-batches x " + number(chunks) +
                (chunks == 1 ? " chunk" : " chunks") + " are more than the " + number(kMostPasses) +
                " passes that a schedule may have; " +
                (given ? "legal: 1 to " + number(most) + "; nearest: " + number(most)
                       : "choose larger micro-batches: at most " + number(most) + " of them"));
}

std::string layers_text(const ModelDeck& model) {
  const std::int64_t layers = layer_count(model);
  std::string text = "legal: ";
  if (layers > 0) text += layers == 1 ? "0" : "0 to " + number(layers - 1) + ", ranges such as 0-" + number(layers - 1);
  if (!takes_rows(model.kind)) text += layers > 0 ? ", head" : "head";
  return text;
}

// Every layer at most once in all three lists.
void layer_lists_rule(const Check& check) {
  const ActivationsDeck& activations = check.deck.parallel.activations;
  if (!units_known(check)) return;
  std::map<std::int64_t, std::string> named;
  for (const auto& [key, entries] : {std::pair("keep", &activations.keep),
                                     {"recompute", &activations.recompute},
                                     {"offload", &activations.offload}}) {
    const std::string path = std::string("parallel.activations.") + key;
    if (check.places.faulty.contains(path)) continue;
    for (const std::string& entry : *entries) {
      const std::optional<Range> units = named_units(check.deck.model, entry);
      if (!units) {
        const bool every = entry == "all" || entry == "*";
        check.add(path, entry + " names no layer of this model; " + layers_text(check.deck.model) +
                            (every ? "; for all layers type parallel.activations.default=" + std::string(key) : ""));
        break;
      }
      for (std::int64_t unit = units->begin; unit < units->end; ++unit) {
        const auto [before, fresh] = named.emplace(unit, path);
        if (fresh) continue;
        const std::int64_t layer = unit - first_layer_unit(check.deck.model);
        check.add(path, (layer < layer_count(check.deck.model) ? "layer " + number(layer) : std::string("the head")) +
                            " stands in " + before->second + " already; name it once");
        return;
      }
    }
  }
}

// Parts of blocks that run again as a whole.
void void_sublayers_rule(const Check& check) {
  const char* lists[] = {"parallel.activations.default", "parallel.activations.keep", "parallel.activations.recompute",
                         "parallel.activations.offload"};
  for (const char* list : lists) {
    if (!check.sound({list})) return;
  }
  if (!units_known(check)) return;
  const std::vector<Keeping> units = keeping_of_units(check.deck);
  const auto first = units.begin() + first_layer_unit(check.deck.model);
  const auto whole = [](Keeping keeping) { return keeping == Keeping::recompute; };
  if (!std::all_of(first, first + layer_count(check.deck.model), whole)) return;
  const bool by_default = check.deck.parallel.activations.rest == Keeping::recompute;
  check.add("parallel.activations.sublayers",
            "has no meaning: " +
                std::string(by_default ? "parallel.activations.default: recompute" : "parallel.activations.recompute") +
                " runs every block again as a whole; take it away, or type " +
                (by_default ? "parallel.activations.default=keep" : "fewer layers in parallel.activations.recompute"));
}

void sublayers_rule(const Check& check) {
  const char* path = "parallel.activations.sublayers";
  const std::vector<std::string>& sublayers = check.deck.parallel.activations.sublayers;
  if (sublayers.empty() || !check.sound({path, "model.kind"})) return;
  if (check.deck.model.kind != ModelKind::transformer) {
    check.add(path,
              "only blocks of a transformer have sublayers; take it away, or name layers in "
              "parallel.activations.recompute");
    return;
  }
  void_sublayers_rule(check);
  const std::vector<std::string> legal = {"attention", "ffn"};
  for (const std::string& sublayer : sublayers) {
    if (std::find(legal.begin(), legal.end(), sublayer) != legal.end()) continue;
    const std::string nearest = nearest_name(sublayer, legal);
    check.add(path,
              sublayer + " is no sublayer; legal: " + join(legal) + (nearest.empty() ? "" : "; nearest: " + nearest));
  }
}

}  // namespace

bool stages_fit(const Check& check, std::int64_t stages) {
  const ParallelDeck& parallel = check.deck.parallel;
  const std::int64_t chunks =
      capped_product({stages, check.sound({"parallel.interleave"}) && has_chunks(parallel) ? parallel.interleave : 1});
  if (units_known(check) && chunks > unit_count(check.deck.model)) return false;
  if (!parallel.cuts.empty() && parallel.schedule != "layered" && std::ssize(parallel.cuts) != chunks) return false;
  if (parallel.schedule == "geo" && std::ssize(parallel.extra_in_flight) != stages - 1) return false;
  return parallel.schedule != "list" || std::ssize(parallel.schedule_list) == stages;
}

void pipeline_rules(const Check& check) {
  const ParallelDeck& parallel = check.deck.parallel;
  stage_rule(check);
  interleave_rule(check);
  one_chunk_rule(check);
  other_schedule_rules(check);
  cuts_rule(check);
  length_rule(check);
  layer_lists_rule(check);
  sublayers_rule(check);
  needed_list(check, "geo", "parallel.extra_in_flight", parallel.extra_in_flight, parallel.stages - 1,
              "boundary between stages");
  needed_list(check, "list", "parallel.schedule_list", parallel.schedule_list, parallel.stages, "stage");
}

}  // namespace fourfold
