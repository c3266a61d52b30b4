// HDF5 files of contiguous datasets: whole logical tensors, whose bytes no conversion, filter or fill touches.
//
// Parallel files (create, open) are collective: every rank of the communicator makes the same calls with the same
// arguments in the same order. Errors are of one rank (Error, storage): a rank that fails inside parallel HDF5 leaves
// the others waiting in it, so the job has to end. A parallel file that close() was not called on is abandoned, not
// closed: closing would communicate.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "comm/communicator.hpp"
#include "h5/element.hpp"
#include "h5/handle.hpp"

namespace fourfold::h5 {

struct FileOptions {
  std::int64_t alignment = 4096;    // datasets of 16 times this and more begin at multiples of it
  bool collective_metadata = true;  // HDF5 reads and writes its own structures by collective operations
  std::vector<std::pair<std::string, std::string>> hints;  // for MPI-IO: {"striping_factor", "16"}
};

using Number = std::variant<std::int64_t, double>;

class Dataset {
 public:
  Dataset(Handle<Kind::dataset> handle, ElementType type, std::vector<std::int64_t> shape, bool parallel)
      : handle_(std::move(handle)), type_(type), shape_(std::move(shape)), parallel_(parallel) {}
  Dataset(Dataset&&) noexcept = default;
  Dataset& operator=(Dataset&&) noexcept = default;
  // In a parallel file HDF5 may want all ranks for a close; with an exception on its way here they may be elsewhere.
  ~Dataset() {
    if (parallel_ && std::uncaught_exceptions() > 0) handle_.release();
  }

  Id id() const { return handle_.id(); }
  const std::string& where() const { return handle_.where(); }  // FILE:/params/x
  ElementType type() const { return type_; }
  const std::vector<std::int64_t>& shape() const { return shape_; }
  bool parallel() const { return parallel_; }
  std::int64_t bytes() const;
  // Where the data begin in the file; 0 for a dataset without elements.
  std::int64_t offset() const;
  void close() { handle_.close(); }

 private:
  Handle<Kind::dataset> handle_;
  ElementType type_;
  std::vector<std::int64_t> shape_;
  bool parallel_;
};

class File {
 public:
  // A new file (an old one of that name is overwritten), through MPI-IO, object times off.
  static File create(const Communicator& group, const std::string& path, const FileOptions& options = {});
  // Read-only, through MPI-IO.
  static File open(const Communicator& group, const std::string& path, const FileOptions& options = {});
  // Read-only, this process alone, without MPI and without asking for a lock.
  static File open_serial(const std::string& path);

  File(File&&) noexcept = default;
  File& operator=(File&&) = delete;
  ~File();

  // Objects are named by their path, "/params/x"; missing groups on the way are made. Space is allocated at once and
  // not filled. An empty shape is a scalar.
  Dataset create_dataset(const std::string& name, ElementType type, const std::vector<std::int64_t>& shape);
  // Errors: also when the stored type is none of ElementType or the layout is not contiguous.
  Dataset dataset(const std::string& name) const;

  // Text as one fixed-length string; zero bytes at its end are lost.
  void write_text(const std::string& name, const std::string& text);
  std::string read_text(const std::string& name) const;

  // Numbers as attributes of a group (made when missing).
  void write_number(const std::string& group, const std::string& name, Number value);
  std::map<std::string, Number> read_numbers(const std::string& group) const;

  // The paths of the objects in a group and below it that are not groups, sorted; none when there is no such group.
  std::vector<std::string> list(const std::string& group) const;

  // Collective for parallel files. Errors: HDF5's, also when datasets of the file are still open. A parallel file whose
  // last bytes this rank cannot write ends the job (storage), with `title` before the reason: HDF5 would wait for ranks
  // that wait for this one.
  void close(const std::string& title = "the file is not complete");

 private:
  File(Handle<Kind::file> handle, bool parallel, int rank)
      : handle_(std::move(handle)), parallel_(parallel), rank_(rank) {}
  std::string at(const std::string& name) const { return handle_.where() + ":" + name; }
  bool exists(const std::string& name) const;
  void make_groups(const std::string& path);

  Handle<Kind::file> handle_;
  bool parallel_;
  int rank_;
};

}  // namespace fourfold::h5
