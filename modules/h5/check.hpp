// Every return of HDF5 is looked at here. Included by this module's sources only.
#pragma once

#include <hdf5.h>

#include <string>
#include <type_traits>

#include "h5/handle.hpp"

namespace fourfold::h5 {

static_assert(std::is_same_v<hid_t, Id>, "HDF5 1.10 or newer: ids have 64 bits");

// Once a process, before any other call: no printing by HDF5, and no clean-up by HDF5 at exit, where a file that an
// error left open would make it wait for the other ranks.
void prepare_library();

// HDF5's error stack, innermost first: "H5FD__mpio_open: MPI_File_open failed (MPI_ERR_NO_SPACE); ..."
std::string error_stack();

// Errors: Error (storage, one rank): "H5Dwrite failed on FILE:/params/x: ...".
[[noreturn]] void failed(const char* call, const std::string& where);

template <class Result>
Result check(Result result, const char* call, const std::string& where) {
  if (result < 0) failed(call, where);
  return result;
}

}  // namespace fourfold::h5
