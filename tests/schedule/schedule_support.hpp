// Requests, and what is said about faults.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "schedule/builders.hpp"
#include "schedule/checker.hpp"

namespace fourfold::test {

using Kind = OperationKind;

// Every builder where it is legal, but for lists by hand. units: four a stage, and one more so that they do not divide.
inline std::vector<ScheduleRequest> requests(std::int64_t stages, std::int64_t micro_batches) {
  std::vector<ScheduleRequest> list;
  for (const std::string& builder : schedule_builders()) {
    if (builder == "list") continue;
    ScheduleRequest request;
    request.builder = builder;
    request.stages = stages;
    request.micro_batches = micro_batches;
    if (builder == "layered") {
      for (const std::int64_t units : {stages, 4 * stages, 4 * stages + 1}) {
        request.units = units;
        list.push_back(request);
      }
      continue;
    }
    if (builder == "geo") {
      for (std::int64_t boundary = -1; boundary < stages - 1; ++boundary) {
        request.extra_in_flight.assign(static_cast<std::size_t>(stages - 1), 0);
        if (boundary >= 0) request.extra_in_flight[static_cast<std::size_t>(boundary)] = boundary + 1;
        list.push_back(request);
      }
      continue;
    }
    const bool interleaves = builder == "interleaved" || builder == "modular";
    for (std::int64_t chunks = 1; chunks <= (interleaves ? 3 : 1); ++chunks) {
      request.interleave = chunks;
      list.push_back(request);
    }
  }
  return list;
}

inline std::string text_of(const ScheduleRequest& request) {
  return request.builder + " stages " + std::to_string(request.stages) + " micro-batches " +
         std::to_string(request.micro_batches) + " interleave " + std::to_string(request.interleave) + " units " +
         std::to_string(request.units);
}

inline Schedule build(const std::string& builder, std::int64_t stages, std::int64_t micro_batches,
                      std::int64_t interleave = 1) {
  ScheduleRequest request;
  request.builder = builder;
  request.stages = stages;
  request.micro_batches = micro_batches;
  request.interleave = interleave;
  return build_schedule(request);
}

inline std::string all_text(const std::vector<std::string>& faults) {
  std::string text;
  for (const std::string& fault : faults) text += fault + "\n";
  return text;
}

// Refused before it runs, by faults that hold all the parts.
inline void expect_refused(const Schedule& schedule, const std::vector<std::string>& parts,
                           const ActivationLimits& limits = {}) {
  const std::string text = all_text(check_schedule(schedule, limits).faults);
  EXPECT_NE(text, "");
  for (const std::string& part : parts) {
    EXPECT_NE(text.find(part), std::string::npos) << "wanted \"" << part << "\" in: " << text;
  }
}

// What build_schedule says of a request that it refuses; "" if it does not.
inline std::string refusal(const ScheduleRequest& request) {
  try {
    build_schedule(request);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::input);
    return error.what();
  }
  return "";
}

// Of one stage's list: the index of an operation, which must be there.
inline std::size_t find(const Schedule& schedule, int stage, Kind kind, int micro_batch, int chunk = -1) {
  const std::vector<StageOperation>& list = schedule.list(stage);
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (list[i].kind == kind && list[i].micro_batch == micro_batch && (chunk < 0 || list[i].chunk == chunk)) return i;
  }
  ADD_FAILURE() << "no such operation";
  return 0;
}

}  // namespace fourfold::test
