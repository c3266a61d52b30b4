// Machine files: those that come with the program, and what is wrong with others.
#include <filesystem>

#include "deck_support.hpp"

namespace fourfold::test {
namespace {

const std::string kMachine = R"(name: small
nodes: 2
ranks_per_node: 3
hosts: "a[7-8]"
links:
  inside: {latency: 1.5e-6, bandwidth: 1e11}
  between: {latency: 2.0e-6, bandwidth: 25.0e+9}
rank: {fp64: 1e13, fp32: 2e13, bf16: 3e14, memory_bandwidth: 1.5e12}
)";

// The text with one line in place of the one that starts with `start`.
std::string with_line(const std::string& start, const std::string& line) {
  std::string text = kMachine;
  const std::size_t begin = text.find(start);
  text.replace(begin, text.find('\n', begin) - begin, line);
  return text;
}

void expect_machine_fault(const std::string& text, const std::string& position, const std::string& path,
                          const std::vector<std::string>& parts) {
  const ReadResult result = read_machine(text, "m.yaml");
  ASSERT_EQ(result.errors.size(), 1u) << numbered_list(result.errors);
  const std::string message = result.errors[0].text();
  EXPECT_TRUE(message.starts_with("m.yaml:" + position + ": " + (path.empty() ? "" : path + ": "))) << message;
  for (const std::string& part : parts) EXPECT_NE(message.find(part), std::string::npos) << message;
}

TEST(MachineFile, IsReadAsIntegers) {
  const ReadResult result = read_machine(kMachine, "m.yaml");
  ASSERT_TRUE(result.errors.empty()) << numbered_list(result.errors);
  Machine expected;
  expected.name = "small";
  expected.nodes = 2;
  expected.ranks_per_node = 3;
  expected.hosts = {"a7", "a8"};
  expected.inside = {1'500'000, 100'000'000'000};
  expected.between = {2'000'000, 25'000'000'000};
  expected.fp64 = 10'000'000'000'000;
  expected.fp32 = 20'000'000'000'000;
  expected.bf16 = 300'000'000'000'000;
  expected.memory_bandwidth = 1'500'000'000'000;
  EXPECT_EQ(result.deck.emulate.description, expected);
}

TEST(MachineFile, ThoseThatComeWithTheProgramAreLegal) {
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(FOURFOLD_SOURCE_DIR "/inputs/machines")) {
    const ReadResult result = read_machine(file_text(entry.path()), entry.path());
    EXPECT_TRUE(result.errors.empty()) << numbered_list(result.errors);
    EXPECT_EQ(result.deck.emulate.description->name, entry.path().stem());
    ++files;
  }
  EXPECT_EQ(files, 5);
}

TEST(MachineFile, FaultsAreSaidWithTheirPlace) {
  expect_machine_fault(with_line("nodes", "nodes: 0"), "2:1", "nodes", {"0 is out of range", "1 to "});
  expect_machine_fault(with_line("nodes", "nodes: 2.5"), "2:1", "nodes", {"not an integer"});
  expect_machine_fault(with_line("nodes", "node: 2\nnodes: 2"), "2:1", "node", {"unknown key", "nearest: nodes"});
  expect_machine_fault(with_line("nodes", "nodes: 2\nmemory_bandwidth: 1e12"), "3:1", "memory_bandwidth",
                       {"it belongs elsewhere: rank.memory_bandwidth"});
  expect_machine_fault(with_line("  between", "  between: {latency: 2.0e-6}"), "7:3", "links.between.bandwidth",
                       {"is missing", "every machine file says it", "bandwidth: 2.5e10"});
  expect_machine_fault(with_line("  inside", "  inside: {latency: -1, bandwidth: 1e11}"), "6:12",
                       "links.inside.latency", {"-1 is out of range", "0 to 1"});
  expect_machine_fault(with_line("hosts", "hosts: \"a[7-\""), "4:1", "hosts", {"no list of hosts", "nid[001-004,007]"});
  expect_machine_fault(with_line("hosts", "hosts: \"a[7-9]\""), "4:1", "hosts", {"names 3 hosts, but nodes is 2"});
  expect_machine_fault(with_line("hosts", "hosts: \"a7,a7\""), "4:1", "hosts", {"names a7 twice"});
  expect_machine_fault("name: [small\n", "2:1", "", {});
  expect_machine_fault("", "1:1", "", {"the machine file is empty; keys: name, nodes"});
}

TEST(MachineFile, OfWhatItRunsOnIsLoadedToo) {
  const auto read = [&](const LoadedText& machine) {
    return read_deck(kSmallDeck + "emulate: {machine: e.yaml}\n", "small.yaml", {"run.machine=m.yaml"}, 4,
                     [&](const std::string& file) {
                       return file == "m.yaml" ? machine : LoadedText{kMachine, ""};
                     });
  };
  const ReadResult both = read({with_line("ranks_per_node", "ranks_per_node: 1"), ""});
  EXPECT_EQ(numbered_list(both.errors), "");
  EXPECT_EQ(both.deck.run.description->ranks(), 2);  // it need not hold the job
  EXPECT_EQ(both.deck.emulate.description->ranks(), 6);
  EXPECT_EQ(numbered_list(read({"", "No such file"}).errors),
            "1. command line: run.machine=m.yaml: run.machine: cannot read m.yaml: No such file\n");
  const ReadResult faulty = read({with_line("nodes", "nodes: 0"), ""});
  ASSERT_EQ(faulty.errors.size(), 1u) << numbered_list(faulty.errors);
  EXPECT_TRUE(faulty.errors[0].text().starts_with("m.yaml:2:1: nodes: ")) << faulty.errors[0].text();
}

TEST(MachineFile, IsLoadedForADeckThatNamesIt) {
  std::string asked;
  const auto read = [&](std::int64_t ranks, const LoadedText& machine) {
    return read_deck(kSmallDeck + "emulate: {machine: m.yaml}\n", "small.yaml", {}, ranks,
                     [&](const std::string& file) {
                       asked = file;
                       return machine;
                     });
  };
  ReadResult result = read(4, {kMachine, ""});
  EXPECT_TRUE(result.errors.empty()) << numbered_list(result.errors);
  EXPECT_EQ(asked, "m.yaml");
  EXPECT_EQ(result.deck.emulate.description->ranks(), 6);

  result = read(8, {kMachine, ""});
  EXPECT_EQ(numbered_list(result.errors),
            "1. small.yaml:4:11: emulate.machine: small has 2 nodes x 3 ranks = 6, but the job has 8; name a larger "
            "machine\n");
  result = read(4, {"", "No such file"});
  EXPECT_EQ(numbered_list(result.errors), "1. small.yaml:4:11: emulate.machine: cannot read m.yaml: No such file\n");
  result = read(4, {with_line("nodes", "nodes: 0"), ""});
  ASSERT_EQ(result.errors.size(), 1u) << numbered_list(result.errors);
  EXPECT_TRUE(result.errors[0].text().starts_with("m.yaml:2:1: nodes: ")) << result.errors[0].text();

  asked.clear();
  expect_legal({"emulate.machine=m.yaml"});  // nobody to load it
  EXPECT_TRUE(read_deck(kSmallDeck, "small.yaml", {}, 4, [&](const std::string& file) {
                asked = file;
                return LoadedText{};
              }).errors.empty());
  EXPECT_EQ(asked, "");
}

}  // namespace
}  // namespace fourfold::test
