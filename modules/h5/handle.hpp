// Owners of HDF5's ids. HDF5's header is not included here: an id is a 64-bit integer since 1.10 (checked in
// check.hpp).
#pragma once

#include <cstdint>
#include <string>
#include <utility>

namespace fourfold::h5 {

using Id = std::int64_t;

enum class Kind { file, group, dataset, dataspace, type, property_list, attribute };

// Closes an id of this kind; errors as in check.hpp.
void close_id(Kind kind, Id id, const std::string& where);
// The same from a destructor: a failure changes nothing any more and is not reported.
void close_id_quietly(Kind kind, Id id) noexcept;

template <Kind kind>
class Handle {
 public:
  Handle() = default;
  // Takes over `id`; `where` (file and object) shows in messages.
  Handle(Id id, std::string where) : id_(id), where_(std::move(where)) {}
  Handle(Handle&& other) noexcept : id_(other.release()), where_(std::move(other.where_)) {}
  Handle& operator=(Handle&& other) noexcept {
    if (this != &other) {
      reset();
      where_ = std::move(other.where_);
      id_ = other.release();
    }
    return *this;
  }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  ~Handle() { reset(); }

  Id id() const { return id_; }
  const std::string& where() const { return where_; }
  bool valid() const { return id_ >= 0; }
  // Gives the id away.
  Id release() { return std::exchange(id_, Id{-1}); }
  // Closes now. Errors (Error, storage): HDF5's; the id is kept then.
  void close() {
    if (!valid()) return;
    close_id(kind, id_, where_);
    release();
  }

 private:
  void reset() noexcept {
    if (valid()) close_id_quietly(kind, release());
  }

  Id id_ = -1;
  std::string where_;
};

using Group = Handle<Kind::group>;
using Dataspace = Handle<Kind::dataspace>;
using Type = Handle<Kind::type>;
using PropertyList = Handle<Kind::property_list>;
using Attribute = Handle<Kind::attribute>;

}  // namespace fourfold::h5
