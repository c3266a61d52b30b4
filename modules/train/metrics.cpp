#include "train/metrics.hpp"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "base/error.hpp"

namespace fourfold {

namespace {

using Json = nlohmann::ordered_json;  // keys in the order written; doubles with as many digits as they need

[[noreturn]] void storage_error(const std::string& path, const std::string& what) {
  fail_one(ExitCode::storage, path + ": " + what);
}

Json moe_json(const MoeReport& report) {
  Json json{{"aux_loss", aux_loss(report)}, {"z_loss", z_loss(report)}, {"layers", Json::array()}};
  for (const MoeLayerReport& layer : report) {
    json["layers"].push_back({{"layer", layer.layer},
                              {"aux", layer.aux},
                              {"z", layer.z},
                              {"dropped", layer.dropped},
                              {"max_load", layer.max_load},
                              {"entropy", layer.entropy}});
  }
  return json;
}

}  // namespace

Metrics::Metrics(const std::string& folder, std::int64_t resumed_step, Ceiling ceiling)
    : path_(folder + "/metrics.jsonl"), ceiling_(std::move(ceiling)) {
  std::string text;
  if (std::ifstream old(path_, std::ios::binary); old) {
    text.assign(std::istreambuf_iterator<char>(old), std::istreambuf_iterator<char>());
    if (old.bad()) storage_error(path_, "cannot be read");
  }
  const std::size_t whole = text.rfind('\n') == std::string::npos ? 0 : text.rfind('\n') + 1;
  if (whole < text.size()) {
    std::error_code error;
    std::filesystem::resize_file(path_, whole, error);
    if (error) storage_error(path_, "the unfinished last line cannot be cut off: " + error.message());
    text.resize(whole);
  }
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = text.find('\n', begin);
    const Json line = Json::parse(text.begin() + static_cast<std::ptrdiff_t>(begin),
                                  text.begin() + static_cast<std::ptrdiff_t>(end), nullptr, false);
    // Lines that are not ours are left alone.
    if (line.is_object() && line.value("event", Json()) == "eval" && line.value("step", Json()).is_number_integer()) {
      evaluated_.insert(line.at("step").get<std::int64_t>());
    }
    begin = end + 1;
  }
  file_.reset(std::fopen(path_.c_str(), "ab"));
  if (!file_) storage_error(path_, std::strerror(errno));
  if (!text.empty()) put(Json{{"event", "restart"}, {"step", resumed_step}}.dump());
}

void Metrics::write(const StepReport& report, double model_flops) {
  Json line{{"step", report.step},
            {"loss", report.loss},
            {"grad_norm", report.grad_norm},
            {"lr", report.learning_rate},
            {"tokens", report.tokens},
            {"seconds", report.seconds},
            {"tokens_per_second", static_cast<double>(report.tokens) / report.seconds},
            {"model_flops_per_second", model_flops / report.seconds}};
  if (ceiling_.flops_per_second > 0) line["utilisation"] = model_flops / report.seconds / ceiling_.flops_per_second;
  if (!report.moe.empty()) line["moe"] = moe_json(report.moe);
  if (!report.skipped.empty()) line["skipped"] = report.skipped;
  put(line.dump());
}

void Metrics::write_flops(std::int64_t step, double model_per_token, double computed_per_token) {
  put(Json{{"event", "flops"},
           {"step", step},
           {"model_per_token", model_per_token},
           {"computed_per_token", computed_per_token}}
          .dump());
}

void Metrics::write(const MigrationReport& report) {
  Json line{{"event", "migration"}, {"step", report.step}, {"seconds", report.seconds}, {"layers", Json::array()}};
  for (const LayerMigration& layer : report.layers) {
    Json swaps = Json::array();
    for (const auto& [a, b] : layer.swaps) swaps.push_back({a, b});
    line["layers"].push_back(
        {{"layer", layer.layer}, {"before", layer.before}, {"after", layer.after}, {"swaps", std::move(swaps)}});
  }
  put(line.dump());
}

void Metrics::write(std::int64_t step, const EvalReport& report) {
  Json line{{"event", "eval"},           {"step", step},
            {"loss", report.loss},       {"samples", report.samples},
            {"targets", report.targets}, {"seconds", report.seconds}};
  if (report.bits_per_byte) line["bits_per_byte"] = *report.bits_per_byte;
  put(line.dump());
}

void Metrics::write(std::int64_t step, const checkpoint::SaveReport& report) {
  put(Json{{"event", "checkpoint"},
           {"step", step},
           {"bytes", report.bytes},
           {"seconds", report.seconds},
           {"write_seconds", report.write_seconds},
           {"fsync_seconds", report.fsync_seconds},
           {"blocked_seconds", report.blocked_seconds},
           {"gigabytes_per_second", report.gigabytes_per_second()}}
          .dump());
}

void Metrics::write(std::int64_t step, const TrafficReport& report) {
  Json line{{"event", "communication"}, {"step", step}, {"axes", Json::array()}};
  for (const AxisTraffic& axis : report.axes) {
    Json entry{{"axis", axis.axis},
               {"operations", axis.operations},
               {"messages", axis.messages},
               {"bytes_inside", axis.bytes_inside},
               {"bytes_between", axis.bytes_between},
               {"exposed_mean", axis.exposed_mean},
               {"exposed_largest", axis.exposed_largest}};
    if (report.makespan) {
      entry["virtual_mean"] = axis.virtual_mean;
      entry["virtual_largest"] = axis.virtual_largest;
    }
    line["axes"].push_back(std::move(entry));
  }
  if (report.makespan) line["virtual_picoseconds"] = *report.makespan;
  put(line.dump());
}

void Metrics::write(std::int64_t step, const SlowRanks& report) {
  put(Json{{"event", "ranks"},
           {"step", step},
           {"computing_least", report.least},
           {"computing_median", report.median},
           {"computing_largest", report.largest},
           {"slowest", report.slowest},
           {"host", report.host},
           {"waiting_median", report.waiting_median},
           {"waiting_largest", report.waiting_largest}}
          .dump());
}

void Metrics::write(std::int64_t step, const PhaseReport& report) {
  Json line{{"event", "phases"}, {"step", step}, {"seconds", report.whole}};
  for (int i = 0; i < kWorkPhases; ++i) {
    const std::string name(work_phase_name(static_cast<WorkPhase>(i)));
    line["mean"][name] = report.mean[static_cast<std::size_t>(i)];
    line["largest"][name] = report.largest[static_cast<std::size_t>(i)];
  }
  put(line.dump());
}

void Metrics::put(const std::string& line) {
  const std::string text = line + "\n";
  if (std::fwrite(text.data(), 1, text.size(), file_.get()) != text.size() || std::fflush(file_.get()) != 0) {
    storage_error(path_, std::strerror(errno));
  }
}

}  // namespace fourfold
