// Small agreements between ranks: verdicts, texts, equality. All collective over the group; Phase::control;
// `where` shows in hang reports.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "comm/code_place.hpp"
#include "comm/communicator.hpp"

namespace fourfold {

// Whether `mine` is true on at least one rank.
bool agree_any(const Communicator& group, bool mine, CodePlace where = CodePlace::current());
bool agree_all(const Communicator& group, bool mine, CodePlace where = CodePlace::current());

// The root's text on every rank; the others' argument is not looked at.
std::string broadcast_string(const Communicator& group, const std::string& text, int root = 0,
                             CodePlace where = CodePlace::current());

// Every rank's text in rank order on rank 0, nothing on the others.
std::vector<std::string> gather_strings(const Communicator& group, const std::string& text,
                                        CodePlace where = CodePlace::current());

// The first rank whose value differs from rank 0's, -1 when all are equal; the same answer on every rank.
int first_different(const Communicator& group, std::uint64_t mine, CodePlace where = CodePlace::current());

// 64-bit FNV-1a, to compare texts and buffers across ranks with first_different.
std::uint64_t hash_bytes(std::string_view bytes);

}  // namespace fourfold
