#include "trials/table_file.hpp"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "base/error.hpp"
#include "h5/file.hpp"
#include "h5/transfer.hpp"

namespace fourfold::trials {

namespace {

std::vector<std::string> columns_of(const std::vector<Row>& rows) {
  std::vector<std::string> names;
  for (const Row& row : rows) {
    for (const auto& [name, cell] : row) {
      if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
    }
  }
  return names;
}

bool holds_texts(const std::vector<Row>& rows, const std::string& column) {
  return std::any_of(rows.begin(), rows.end(), [&](const Row& row) {
    const Cell* cell = find(row, column);
    return cell != nullptr && std::holds_alternative<std::string>(*cell);
  });
}

}  // namespace

void write_table(const Communicator& alone, const std::string& file, const std::vector<Row>& rows,
                 const std::function<bool(const std::string& column)>& timing) {
  const std::string temporary = file + "." + std::to_string(getpid()) + ".tmp";  // parts of a study may end together
  const auto count = static_cast<std::int64_t>(rows.size());
  h5::File table = h5::File::create(alone, temporary);
  table.write_number("/columns", "rows", count);
  for (const std::string& column : columns_of(rows)) {
    if (holds_texts(rows, column)) {
      std::string lines;
      for (const Row& row : rows) lines += text(row, column) + "\n";
      table.write_text("/texts/" + column, lines);
      continue;
    }
    std::vector<double> numbers;
    for (const Row& row : rows) numbers.push_back(number(row, column));
    const std::string group = timing(column) ? "/timing/" : "/columns/";
    h5::Dataset dataset = table.create_dataset(group + column, h5::ElementType::fp64, {count});
    h5::write_shard(dataset, whole_shard({count}), {0, count}, numbers.data(), {});
  }
  table.close();
  std::error_code error;
  std::filesystem::rename(temporary, file, error);
  if (error) fail_one(ExitCode::storage, file + ": " + error.message());
}

}  // namespace fourfold::trials
