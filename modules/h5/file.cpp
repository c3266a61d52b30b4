#include "h5/file.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <optional>

#include "base/error.hpp"
#include "comm/abort.hpp"
#include "comm/mpi_handle.hpp"
#include "h5/check.hpp"
#include "h5/types.hpp"

namespace fourfold::h5 {

namespace {

constexpr const char* kElementAttribute = "element";

PropertyList make_list(Id list_class, const std::string& where) {
  return {check(H5Pcreate(list_class), "H5Pcreate", where), where};
}

class Info {
 public:
  explicit Info(const std::vector<std::pair<std::string, std::string>>& hints) {
    if (hints.empty()) return;
    MPI_Info_create(&info_);
    for (const auto& [key, value] : hints) MPI_Info_set(info_, key.c_str(), value.c_str());
  }
  ~Info() {
    if (info_ != MPI_INFO_NULL) MPI_Info_free(&info_);
  }
  Info(const Info&) = delete;
  Info& operator=(const Info&) = delete;
  MPI_Info get() const { return info_; }

 private:
  MPI_Info info_ = MPI_INFO_NULL;
};

PropertyList parallel_access(const Communicator& group, const std::string& path, const FileOptions& options) {
  PropertyList access = make_list(H5P_FILE_ACCESS, path);
  const Info info(options.hints);
  const auto id = access.id();
  check(H5Pset_fapl_mpio(id, group.handle().comm, info.get()), "H5Pset_fapl_mpio", path);
  check(H5Pset_all_coll_metadata_ops(id, options.collective_metadata), "H5Pset_all_coll_metadata_ops", path);
  check(H5Pset_coll_metadata_write(id, options.collective_metadata), "H5Pset_coll_metadata_write", path);
  check(H5Pset_libver_bounds(id, H5F_LIBVER_V18, H5F_LIBVER_V110), "H5Pset_libver_bounds", path);
  const auto alignment = static_cast<hsize_t>(options.alignment);
  check(H5Pset_alignment(id, 16 * alignment, alignment), "H5Pset_alignment", path);
  return access;
}

// While HDF5 (1.10) closes a parallel file, a write that fails for one rank sends that rank on into the next collective
// call. MPI's error handler of the file is the only one that hears of it in time.
class EndOnError {
 public:
  EndOnError(Id file, std::string what) {
    text() = std::move(what);
    void* place = nullptr;
    if (H5Fget_vfd_handle(file, H5P_DEFAULT, &place) < 0) return;
    MPI_Errhandler handler = MPI_ERRHANDLER_NULL;
    MPI_File_create_errhandler(end_job, &handler);
    MPI_File_set_errhandler(*static_cast<MPI_File*>(place), handler);
    MPI_Errhandler_free(&handler);  // once the file is closed
  }

 private:
  static std::string& text() {
    static std::string the;
    return the;
  }
  static void end_job(MPI_File* /*file*/, int* code, ...) {
    std::array<char, MPI_MAX_ERROR_STRING> reason{};
    int length = 0;
    MPI_Error_string(*code, reason.data(), &length);
    const std::string system = errno != 0 ? std::string(" (the system's last: ") + std::strerror(errno) + ")" : "";
    abort_job(ExitCode::storage, text() + ": " + reason.data() + system);
  }
};

Dataspace make_space(const std::vector<std::int64_t>& shape, const std::string& where) {
  if (shape.empty()) return {check(H5Screate(H5S_SCALAR), "H5Screate", where), where};
  const std::vector<hsize_t> dims(shape.begin(), shape.end());
  return {check(H5Screate_simple(static_cast<int>(dims.size()), dims.data(), nullptr), "H5Screate_simple", where),
          where};
}

PropertyList contiguous_creation(const std::string& where) {
  PropertyList list = make_list(H5P_DATASET_CREATE, where);
  check(H5Pset_layout(list.id(), H5D_CONTIGUOUS), "H5Pset_layout", where);
  check(H5Pset_alloc_time(list.id(), H5D_ALLOC_TIME_EARLY), "H5Pset_alloc_time", where);
  check(H5Pset_fill_time(list.id(), H5D_FILL_TIME_NEVER), "H5Pset_fill_time", where);
  check(H5Pset_obj_track_times(list.id(), false), "H5Pset_obj_track_times", where);
  return list;
}

Type string_type(std::size_t bytes, const std::string& where) {
  Type type(check(H5Tcopy(H5T_C_S1), "H5Tcopy", where), where);
  check(H5Tset_size(type.id(), std::max<std::size_t>(bytes, 1)), "H5Tset_size", where);
  check(H5Tset_strpad(type.id(), H5T_STR_NULLPAD), "H5Tset_strpad", where);
  check(H5Tset_cset(type.id(), H5T_CSET_UTF8), "H5Tset_cset", where);
  return type;
}

void write_attribute(Id object, const std::string& name, const Type& type, const void* value,
                     const std::string& where) {
  const Dataspace space = make_space({}, where);
  const Attribute attribute(
      check(H5Acreate2(object, name.c_str(), type.id(), space.id(), H5P_DEFAULT, H5P_DEFAULT), "H5Acreate2", where),
      where);
  check(H5Awrite(attribute.id(), type.id(), value), "H5Awrite", where);
}

herr_t add_link(hid_t, const char* name, const H5L_info_t*, void* names) {
  static_cast<std::vector<std::string>*>(names)->emplace_back(name);
  return 0;
}

herr_t add_attribute(hid_t, const char* name, const H5A_info_t*, void* names) {
  static_cast<std::vector<std::string>*>(names)->emplace_back(name);
  return 0;
}

}  // namespace

std::int64_t Dataset::bytes() const {
  std::int64_t elements = 1;
  for (const std::int64_t length : shape_) elements *= length;
  return elements * element_bytes(type_);
}

std::int64_t Dataset::offset() const {
  if (bytes() == 0) return 0;
  const haddr_t address = H5Dget_offset(id());
  if (address == HADDR_UNDEF) failed("H5Dget_offset", where());
  return static_cast<std::int64_t>(address);
}

File File::create(const Communicator& group, const std::string& path, const FileOptions& options) {
  prepare_library();
  const PropertyList access = parallel_access(group, path, options);
  const PropertyList creation = make_list(H5P_FILE_CREATE, path);
  check(H5Pset_obj_track_times(creation.id(), false), "H5Pset_obj_track_times", path);
  Handle<Kind::file> handle(
      check(H5Fcreate(path.c_str(), H5F_ACC_TRUNC, creation.id(), access.id()), "H5Fcreate", path), path);
  return File(std::move(handle), true, group.rank());
}

File File::open(const Communicator& group, const std::string& path, const FileOptions& options) {
  prepare_library();
  const PropertyList access = parallel_access(group, path, options);
  Handle<Kind::file> handle(check(H5Fopen(path.c_str(), H5F_ACC_RDONLY, access.id()), "H5Fopen", path), path);
  return File(std::move(handle), true, group.rank());
}

File File::open_serial(const std::string& path) {
  prepare_library();
  const PropertyList access = make_list(H5P_FILE_ACCESS, path);
#if H5_VERSION_GE(1, 10, 7)
  // Committed files do not change, and not every file system has locks.
  check(H5Pset_file_locking(access.id(), false, true), "H5Pset_file_locking", path);
#endif
  Handle<Kind::file> handle(check(H5Fopen(path.c_str(), H5F_ACC_RDONLY, access.id()), "H5Fopen", path), path);
  return File(std::move(handle), false, 0);
}

File::~File() {
  if (parallel_) handle_.release();
}

void File::close(const std::string& title) {
  std::optional<EndOnError> guard;
  if (parallel_ && handle_.valid()) guard.emplace(handle_.id(), title + ": closing " + handle_.where());
  handle_.close();
}

bool File::exists(const std::string& name) const {
  for (std::size_t end = name.find('/', 1);; end = name.find('/', end + 1)) {
    const std::string head = name.substr(0, end);
    if (check(H5Lexists(handle_.id(), head.c_str(), H5P_DEFAULT), "H5Lexists", at(head)) == 0) return false;
    if (end == std::string::npos) return true;
  }
}

void File::make_groups(const std::string& path) {
  const PropertyList creation = make_list(H5P_GROUP_CREATE, at(path));
  check(H5Pset_obj_track_times(creation.id(), false), "H5Pset_obj_track_times", at(path));
  for (std::size_t end = path.find('/', 1);; end = path.find('/', end + 1)) {
    const std::string head = path.substr(0, end);
    if (!exists(head))
      Group(check(H5Gcreate2(handle_.id(), head.c_str(), H5P_DEFAULT, creation.id(), H5P_DEFAULT), "H5Gcreate2",
                  at(head)),
            at(head));
    if (end == std::string::npos) return;
  }
}

Dataset File::create_dataset(const std::string& name, ElementType type, const std::vector<std::int64_t>& shape) {
  FOURFOLD_ASSERT(name.size() > 1 && name.front() == '/', "objects are named by their path");
  if (const std::size_t slash = name.rfind('/'); slash > 0) make_groups(name.substr(0, slash));
  const std::string where = at(name);
  const Dataspace space = make_space(shape, where);
  const PropertyList creation = contiguous_creation(where);
  Handle<Kind::dataset> handle(check(H5Dcreate2(handle_.id(), name.c_str(), stored_type(type), space.id(), H5P_DEFAULT,
                                                creation.id(), H5P_DEFAULT),
                                     "H5Dcreate2", where),
                               where);
  if (type == ElementType::bf16) {
    const std::string value(element_name(type));
    write_attribute(handle.id(), kElementAttribute, string_type(value.size(), where), value.data(), where);
  }
  return Dataset(std::move(handle), type, shape, parallel_);
}

Dataset File::dataset(const std::string& name) const {
  const std::string where = at(name);
  Handle<Kind::dataset> handle(check(H5Dopen2(handle_.id(), name.c_str(), H5P_DEFAULT), "H5Dopen2", where), where);
  const Type type(check(H5Dget_type(handle.id()), "H5Dget_type", where), where);
  const bool named = check(H5Aexists(handle.id(), kElementAttribute), "H5Aexists", where) > 0;
  const auto element = element_stored_as(type.id(), named);
  if (!element) fail_one(ExitCode::storage, where + " holds numbers of a type that Fourfold does not write");
  const PropertyList creation(check(H5Dget_create_plist(handle.id()), "H5Dget_create_plist", where), where);
  if (H5Pget_layout(creation.id()) != H5D_CONTIGUOUS)
    fail_one(ExitCode::storage, where + " is not contiguous; Fourfold writes contiguous datasets only");
  const Dataspace space(check(H5Dget_space(handle.id()), "H5Dget_space", where), where);
  std::vector<hsize_t> dims(
      static_cast<std::size_t>(check(H5Sget_simple_extent_ndims(space.id()), "H5Sget_simple_extent_ndims", where)));
  check(H5Sget_simple_extent_dims(space.id(), dims.data(), nullptr), "H5Sget_simple_extent_dims", where);
  return Dataset(std::move(handle), *element, {dims.begin(), dims.end()}, parallel_);
}

void File::write_text(const std::string& name, const std::string& text) {
  if (const std::size_t slash = name.rfind('/'); slash > 0) make_groups(name.substr(0, slash));
  const std::string where = at(name);
  const Type type = string_type(text.size(), where);
  const Dataspace space = make_space({}, where);
  const PropertyList creation = contiguous_creation(where);
  Handle<Kind::dataset> handle(
      check(H5Dcreate2(handle_.id(), name.c_str(), type.id(), space.id(), H5P_DEFAULT, creation.id(), H5P_DEFAULT),
            "H5Dcreate2", where),
      where);
  const std::string padded = text.empty() ? std::string(1, '\0') : text;
  const PropertyList transfer = make_list(H5P_DATASET_XFER, where);
  if (parallel_) check(H5Pset_dxpl_mpio(transfer.id(), H5FD_MPIO_COLLECTIVE), "H5Pset_dxpl_mpio", where);
  if (rank_ != 0) check(H5Sselect_none(space.id()), "H5Sselect_none", where);
  check(H5Dwrite(handle.id(), type.id(), space.id(), space.id(), transfer.id(), padded.data()), "H5Dwrite", where);
  handle.close();
}

std::string File::read_text(const std::string& name) const {
  const std::string where = at(name);
  Handle<Kind::dataset> handle(check(H5Dopen2(handle_.id(), name.c_str(), H5P_DEFAULT), "H5Dopen2", where), where);
  const Type type(check(H5Dget_type(handle.id()), "H5Dget_type", where), where);
  if (H5Tget_class(type.id()) != H5T_STRING || H5Tis_variable_str(type.id()) != 0)
    fail_one(ExitCode::storage, where + " is not a text");
  std::string text(H5Tget_size(type.id()), '\0');
  const PropertyList transfer = make_list(H5P_DATASET_XFER, where);
  if (parallel_) check(H5Pset_dxpl_mpio(transfer.id(), H5FD_MPIO_COLLECTIVE), "H5Pset_dxpl_mpio", where);
  check(H5Dread(handle.id(), type.id(), H5S_ALL, H5S_ALL, transfer.id(), text.data()), "H5Dread", where);
  text.resize(text.find_last_not_of('\0') + 1);
  return text;
}

void File::write_number(const std::string& group, const std::string& name, Number value) {
  make_groups(group);
  const std::string where = at(group + "/" + name);
  const Group handle(check(H5Gopen2(handle_.id(), group.c_str(), H5P_DEFAULT), "H5Gopen2", at(group)), at(group));
  std::visit(
      [&](auto number) {
        const Id stored = std::is_same_v<decltype(number), double> ? H5T_IEEE_F64LE : H5T_STD_I64LE;
        const Type type(check(H5Tcopy(stored), "H5Tcopy", where), where);
        write_attribute(handle.id(), name, type, &number, where);
      },
      value);
}

std::map<std::string, Number> File::read_numbers(const std::string& group) const {
  std::map<std::string, Number> numbers;
  if (!exists(group)) return numbers;
  const Group handle(check(H5Gopen2(handle_.id(), group.c_str(), H5P_DEFAULT), "H5Gopen2", at(group)), at(group));
  std::vector<std::string> names;
  check(H5Aiterate2(handle.id(), H5_INDEX_NAME, H5_ITER_INC, nullptr, add_attribute, &names), "H5Aiterate2", at(group));
  for (const std::string& name : names) {
    const std::string where = at(group + "/" + name);
    const Attribute attribute(check(H5Aopen(handle.id(), name.c_str(), H5P_DEFAULT), "H5Aopen", where), where);
    const Type type(check(H5Aget_type(attribute.id()), "H5Aget_type", where), where);
    if (H5Tequal(type.id(), H5T_STD_I64LE) > 0) {
      std::int64_t value = 0;
      check(H5Aread(attribute.id(), H5T_STD_I64LE, &value), "H5Aread", where);
      numbers[name] = value;
    } else if (H5Tequal(type.id(), H5T_IEEE_F64LE) > 0) {
      double value = 0;
      check(H5Aread(attribute.id(), H5T_IEEE_F64LE, &value), "H5Aread", where);
      numbers[name] = value;
    } else {
      fail_one(ExitCode::storage, where + " is neither a 64-bit integer nor a 64-bit float");
    }
  }
  return numbers;
}

std::vector<std::string> File::list(const std::string& group) const {
  std::vector<std::string> links;
  if (group != "/" && !exists(group)) return links;
  check(H5Lvisit_by_name(handle_.id(), group.c_str(), H5_INDEX_NAME, H5_ITER_INC, add_link, &links, H5P_DEFAULT),
        "H5Lvisit_by_name", at(group));
  std::vector<std::string> names;
  for (const std::string& link : links) {
    const std::string name = (group == "/" ? group : group + "/") + link;
    const Id object = check(H5Oopen(handle_.id(), name.c_str(), H5P_DEFAULT), "H5Oopen", at(name));
    if (H5Iget_type(object) != H5I_GROUP) names.push_back(name);
    check(H5Oclose(object), "H5Oclose", at(name));
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace fourfold::h5
