#include "deck/yaml_tree.hpp"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <sstream>

namespace fourfold {
namespace {

// Tabs in the indentation of each line (from 0) that holds more than a comment.
std::vector<int> indentation_tabs(const std::string& text) {
  std::vector<int> tabs;
  std::size_t begin = 0;
  while (begin <= text.size()) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::string line = text.substr(begin, end - begin);
    const std::size_t first = line.find_first_not_of(" \t\r");
    const bool content = first != std::string::npos && line[first] != '#';
    tabs.push_back(content ? static_cast<int>(std::count(line.begin(), line.begin() + static_cast<long>(first), '\t'))
                           : 0);
    begin = end + 1;
  }
  return tabs;
}

// The text with each of those tabs as `width` spaces.
std::string without_tabs(const std::string& text, const std::vector<int>& tabs, int width) {
  std::string result;
  std::size_t line = 0;
  bool indentation = true;
  for (const char c : text) {
    if (indentation && c == '\t' && tabs[line] > 0) {
      result.append(static_cast<std::size_t>(width), ' ');
      continue;
    }
    indentation = indentation && (c == ' ' || c == '\t');
    result += c;
    if (c == '\n') {
      ++line;
      indentation = true;
    }
  }
  return result;
}

// Where documents begin. YAML::LoadAll would take memory without end where the reader stands still: after a stray comma
// every document is empty and the next one begins at the same place.
class DocumentStarts : public YAML::EventHandler {
 public:
  explicit DocumentStarts(const std::string& text) {
    std::istringstream stream(text);
    YAML::Parser parser(stream);
    while (marks_.size() < 2 && parser.HandleNextDocument(*this)) {
    }
  }
  const std::vector<YAML::Mark>& marks() const { return marks_; }  // of the first two

  void OnDocumentStart(const YAML::Mark& mark) override { marks_.push_back(mark); }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark&, YAML::anchor_t) override {}
  void OnAlias(const YAML::Mark&, YAML::anchor_t) override {}
  void OnScalar(const YAML::Mark&, const std::string&, YAML::anchor_t, const std::string&) override {}
  void OnSequenceStart(const YAML::Mark&, const std::string&, YAML::anchor_t, YAML::EmitterStyle::value) override {}
  void OnSequenceEnd() override {}
  void OnMapStart(const YAML::Mark&, const std::string&, YAML::anchor_t, YAML::EmitterStyle::value) override {}
  void OnMapEnd() override {}

 private:
  std::vector<YAML::Mark> marks_;
};

class TreeBuilder {
 public:
  TreeBuilder(const std::string& file, const std::vector<int>& tabs, int tab_width)
      : file_(file), tabs_(tabs), tab_width_(tab_width) {}

  Place place(const YAML::Mark& mark) const {
    if (mark.is_null()) return Place{file_, 1, 1};
    const auto line = static_cast<std::size_t>(mark.line);
    const int widened = line < tabs_.size() ? tabs_[line] * (tab_width_ - 1) : 0;
    return Place{file_, mark.line + 1, std::max(1, mark.column + 1 - widened)};
  }

  // An anchor that holds itself would have no end; no deck is deep.
  YamlNode build(const YAML::Node& node, int depth = 0) const {
    if (depth > 16) throw YAML::ParserException(node.Mark(), "more than 16 levels deep");
    YamlNode result;
    result.place = place(node.Mark());
    switch (node.Type()) {
      case YAML::NodeType::Scalar:
        result.kind = YamlNode::Kind::scalar;
        result.text = node.Scalar();
        result.quoted = node.Tag() == "!";
        break;
      case YAML::NodeType::Sequence:
        result.kind = YamlNode::Kind::list;
        for (const auto& item : node) result.items.push_back(build(item, depth + 1));
        break;
      case YAML::NodeType::Map:
        result.kind = YamlNode::Kind::map;
        for (const auto& entry : node)
          result.entries.push_back({build(entry.first, depth + 1), build(entry.second, depth + 1)});
        break;
      default:
        break;
    }
    return result;
  }

 private:
  const std::string& file_;
  const std::vector<int>& tabs_;
  int tab_width_;
};

}  // namespace

YamlText parse_yaml(const std::string& text, const std::string& file) {
  YamlText result;
  const std::vector<int> tabs = indentation_tabs(text);
  for (std::size_t line = 0; line < tabs.size(); ++line) {
    if (tabs[line] == 0) continue;
    result.faults.push_back({Place{file, static_cast<int>(line) + 1, 1},
                             "tab in the indentation; YAML wants spaces: replace the tab by spaces"});
  }
  const bool tabbed = !result.faults.empty();
  std::optional<YamlFault> syntax;
  // What a tab stood for is unknown: the first width that parses is taken.
  for (const int width : {2, 4, 1, 8}) {
    const TreeBuilder builder(file, tabs, width);
    try {
      const std::string readable = tabbed ? without_tabs(text, tabs, width) : text;
      const std::vector<YAML::Mark> starts = DocumentStarts(readable).marks();
      if (starts.size() > 1) {
        if (starts[1].pos == starts[0].pos) throw YAML::ParserException(starts[1], "a comma or bracket out of place");
        result.faults.push_back(
            {builder.place(starts[1]), "a second YAML document; take it away, a file is one document"});
      }
      if (!starts.empty()) result.root = builder.build(YAML::Load(readable));
      result.readable = true;
      return result;
    } catch (const YAML::Exception& fault) {
      if (!syntax) syntax = YamlFault{builder.place(fault.mark), "not YAML: " + fault.msg};
    }
    if (!tabbed) break;
  }
  // After a tab the syntax fault is most often the tab itself.
  if (!tabbed) result.faults.push_back(*syntax);
  return result;
}

}  // namespace fourfold
