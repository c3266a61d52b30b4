// One table, three ways to write it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace fourfold::study {

struct TextTable {
  std::string title, note;
  std::vector<std::string> header;
  std::vector<std::vector<std::string>> rows;  // as long as the header
};

std::string as_text(const TextTable& table);  // aligned; columns of numbers to the right
std::string as_markdown(const TextTable& table);
std::string as_html(const TextTable& table);
std::string html_escaped(std::string_view text);

// A line of comma-separated values (RFC 4180).
std::string csv_line(const std::vector<std::string>& cells);

}  // namespace fourfold::study
