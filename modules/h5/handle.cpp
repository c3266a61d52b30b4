#include "h5/handle.hpp"

#include "h5/check.hpp"

namespace fourfold::h5 {

namespace {

struct Closer {
  const char* name;
  herr_t (*close)(hid_t);
};

Closer closer(Kind kind) {
  switch (kind) {
    case Kind::file:
      return {"H5Fclose", H5Fclose};
    case Kind::group:
      return {"H5Gclose", H5Gclose};
    case Kind::dataset:
      return {"H5Dclose", H5Dclose};
    case Kind::dataspace:
      return {"H5Sclose", H5Sclose};
    case Kind::type:
      return {"H5Tclose", H5Tclose};
    case Kind::property_list:
      return {"H5Pclose", H5Pclose};
    case Kind::attribute:
      return {"H5Aclose", H5Aclose};
  }
  return {"", nullptr};
}

}  // namespace

void close_id(Kind kind, Id id, const std::string& where) {
  const Closer call = closer(kind);
  check(call.close(id), call.name, where);
}

void close_id_quietly(Kind kind, Id id) noexcept {
  closer(kind).close(id);
}

}  // namespace fourfold::h5
