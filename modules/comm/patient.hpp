// Agreements that some ranks wait long for: they sleep between two looks, where other collectives keep a core busy.
#pragma once

#include "comm/communicator.hpp"

namespace fourfold {

// Whether `mine` is true on at least one rank. Collective; not in the ledger.
bool patient_any(const Communicator& group, bool mine);

// Whether an error has left operations under way: then this launch can make no more of its communicators.
bool operations_abandoned();

}  // namespace fourfold
