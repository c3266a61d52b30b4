#!/usr/bin/env python3
"""readme_names.py FOURFOLD SOURCE: what README.md and the READMEs of the modules name is there.

Looked at are `code spans` and fenced blocks:
- paths and file names exist (from the root, from modules/, from the README's own folder); what a run or build makes is
  named in the sources or lies in a folder that git ignores;
- commands of the program and their options are in its --help; options of scripts and presets of CMake are in their files;
- command lines of the program with a deck pass `fourfold check` on as many ranks; so does the deck by example;
- deck keys as a.b are keys or blocks of inputs/all_keys.yaml;
- environment variables are read, or set, by a source; those that the program reads are named in README.md;
- other names (types, functions, modules) are words of the sources;
- the table of modules has a row for each folder, with what modules/order.cmake allows it.
"""

import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

fourfold, root = sys.argv[1], Path(sys.argv[2])
faults = []
checked = {}


def check(kind, holds, text):
    checked[kind] = checked.get(kind, 0) + 1
    if not holds:
        faults.append(text)


def output(*command):
    return subprocess.run(command, capture_output=True, text=True, cwd=root)


SOURCE_ENDINGS = (".cpp", ".hpp", ".sh", ".sbatch", ".py", ".cmake", ".yaml", ".json", ".txt")
files = [path.relative_to(root) for top in ("app", "modules", "kernels", "inputs", "jobscripts", "tests", ".ci")
         for path in (root / top).rglob("*") if path.is_file()]
files += [path.relative_to(root) for path in root.iterdir() if path.is_file()]
this_test = Path("tests/app/readme_names.py")
sources = {str(path): (root / path).read_text(errors="replace") for path in files
           if path != this_test and (path.name.endswith(SOURCE_ENDINGS) or path.parts[0] == ".ci")}
all_text = "\n".join(sources.values())
words = set(re.findall(r"[A-Za-z_][A-Za-z0-9_]*", all_text))
code_text = "\n".join(text for path, text in sources.items() if path.startswith(("app/", "modules/", "kernels/")))
ignored = [line.strip("/") for line in (root / ".gitignore").read_text().split()]

# Blocks and keys of inputs/all_keys.yaml.
keys, block = set(), []
for line in (root / "inputs/all_keys.yaml").read_text().splitlines():
    found = re.match(r"( *)([a-z_0-9]+):", line)
    if found:
        block = block[: len(found.group(1)) // 2] + [found.group(2)]
        keys.add(".".join(block))
# Of a study's block, which stands beside a deck's.
keys |= {"study"} | {f"study.{name}" for name in re.findall(r"^  ([a-z_]+):", output(fourfold, "study", "--keys").stdout, re.M)}
top_blocks = {key for key in keys if "." not in key}

helps = {"": output(fourfold, "--help").stdout}
commands = re.findall(r"^  ([a-z]+) {2,}", helps[""].split("Subcommands:")[1], re.M)
for command in commands:
    helps[command] = output(fourfold, command, "--help").stdout
    if "Subcommands:" in helps[command]:  # convert data
        for part in re.findall(r"^  ([a-z]+) {2,}", helps[command].split("Subcommands:")[1], re.M):
            helps[command] += output(fourfold, command, part, "--help").stdout


def options_of(text):
    return re.findall(r"(?<![\w-])(--[a-z][a-z-]*)", text)


def path_exists(name, folder):
    plain = re.sub(r"\.\.\.|[.,]$", "", name).rstrip("/")
    if any(next(base.glob(plain), None) for base in (root, root / "modules", folder)):
        return True
    if "/" not in plain and folder == root and any(path.name == plain for path in files):
        return True  # the README of the root names files by their bare names too
    first = plain.split("/")[0]
    if any(Path(first).match(pattern) for pattern in ignored):  # build folders, runs, corpora
        if plain.startswith("build/tests/bench/"):  # built when asked for
            return (root / plain.removeprefix("build/")).with_suffix(".cpp").exists()
        return first in ("runs", "corpus") or plain in (first, "build/app/fourfold", "build/logs")
    if (root / first).is_dir():
        return False
    # Made by a run: every part stands in a text of the program (RUNFOLDER/STOP, checkpoints/step_00000100.h5, .commit).
    parts = re.split(r"/|\d{4,}", re.sub(r"^[A-Z]{2,}/", "", plain))
    return any(parts) and all(not part or re.search(rf'["/}}]{re.escape(part)}["/{{]', code_text) for part in parts)


def is_path(word):
    if re.match(r"^[A-Za-z]+://|^-|^/[a-z]", word) or "=" in word:
        return False
    return bool(re.match(r"^\.?[\w*.-]+(/[\w*.{},-]*)+$", word)) or bool(
        re.search(r"^[\w*-]+\.(cpp|hpp|sh|sbatch|py|cmake|yaml|json|jsonl|txt|md)$", word))


def run_line(line, where):
    """A command line of the program: its command, options and overrides, and whether the deck passes `check`."""
    found = re.search(r"(?:-n (\d+) )?(?:build/app/)?fourfold ([a-z]+)\b(.*)", line)
    ranks, command, rest = found.group(1), found.group(2), found.group(3).split("  #")[0]
    check("command", command in commands, f"{where}: fourfold has no command {command}")
    for option in options_of(rest):
        check("option", command in commands and option in options_of(helps[command]),
              f"{where}: fourfold {command} has no option {option}")
    for key in re.findall(r"[\s']([a-z_]+(?:\.[a-z_]+)+)=", rest):
        check("key", key in keys, f"{where}: no deck key {key}")
    deck = re.search(r"\s(\S+\.yaml)", rest)
    if deck and (root / deck.group(1)).exists():
        call = [fourfold, "check", deck.group(1), *(word for word in shlex.split(rest) if re.match(r"[a-z_.]+=", word))]
        count = ranks or (re.search(r"--ranks (\d+)", rest) or [None, None])[1]
        if command == "study":
            call, count = [fourfold, "study", "--list", *call[2:]], None
        result = output(*call, *(["--ranks", count] if count else []))
        check("command line", result.returncode == 0, f"{where}: {' '.join(call)}: {result.stderr}")


def fence(language, text, where, folder):
    if language == "yaml":
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as deck:
            deck.write(text)
            deck.flush()
            result = output(fourfold, *(["study", "--list"] if re.match(r"study:", text) else ["check"]), deck.name)
            check("deck", result.returncode == 0, f"{where}: the deck does not pass check: {result.stderr}")
        return
    pseudocode = "while " in text
    for line in text.splitlines():
        if re.search(r"fourfold [a-z]+ ", line):
            run_line(line, where)
        for preset in re.findall(r"--preset (\w+)", line):
            check("preset", f'"name": "{preset}"' in sources["CMakePresets.json"], f"{where}: no preset {preset}")
        for script in re.findall(r"\bbash (\S+\.sh)", line):
            for option in options_of(line.split(script)[1].split("  #")[0]):
                check("option", option in sources.get(script, ""), f"{where}: {script} has no option {option}")
        for word in re.split(r"[\s;=,()\[\]{}]+", line):
            variables(word, where)
            if is_path(word):
                check("path", path_exists(word, folder), f"{where}: {word} does not exist")
            elif pseudocode and "_" in word:
                for name in re.findall(r"[A-Za-z_]\w*", word):
                    check("name", name in words, f"{where}: {name} is no name of the sources")


def variables(text, where):
    for dollar, name in re.findall(r"(\$?)\{?\b((?!CMAKE_)[A-Z][A-Z0-9]+_[A-Z0-9_]+)\b", re.sub("-D", "-D ", text)):
        read = re.search(rf'"{name}"|\$\{{?{name}\b|\b{name}=|(option|set)\({name}\b|#define {name}\b', all_text)
        check("variable", dollar or read, f"{where}: nothing reads or sets {name}")


def span(text, where, folder, command=None):
    """One code span. `command`: the command of the program whose row of a table it stands in."""
    variables(text, where)
    if re.match(r"(build/app/)?fourfold [a-z]+", text):
        return run_line(text, where)
    if text.startswith("--"):
        option = options_of(text)[0]
        known = helps[command] if command in helps else "".join(helps.values()) + sources["tests/run.sh"]
        return check("option", option in options_of(known), f"{where}: {command or 'nothing'} has no option {option}")
    if text.startswith("bash "):
        for option in options_of(text):
            check("option", option in sources.get(text.split()[1], ""), f"{where}: no option {option}: {text}")
    key = re.match(r"([a-z]+(?:\.[a-z_]+)+)(?=$|[:= ])", text)
    if key and key.group(1).split(".")[0] in top_blocks and not is_path(text):
        return check("key", key.group(1) in keys, f"{where}: no deck key {key.group(1)}")
    for word in re.split(r"[\s=,()]+", text):
        if is_path(word):
            check("path", path_exists(word, folder), f"{where}: {word} does not exist")
        elif re.match(r"^[A-Za-z_]\w*(<\w+>)?(::\w+)*$", word) and text == word or re.match(r"^\w+(<\w+>)?\(\)$", text):
            name = re.match(r"\w+", text).group(0)
            known = name in words or (root / name).exists() or (root / "modules" / name).exists()
            check("name", known, f"{where}: {name} is no name of the sources")
    return None


def readme(path):
    text = (root / path).read_text()
    fences = list(re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.M | re.S))
    for found in fences:
        fence(found.group(1), found.group(2), f"{path}:{text[:found.start()].count(chr(10)) + 1}", (root / path).parent)
    # Line numbers stay: fenced blocks become empty lines.
    text = re.sub(r"^```.*?^```$", lambda found: "\n" * found.group(0).count("\n"), text, flags=re.M | re.S)
    for number, line in enumerate(text.splitlines(), 1):
        row = re.match(r"\| `([a-z]+)` \|", line)
        command = row.group(1) if row and row.group(1) in helps else None
        for code in re.findall(r"`([^`]+)`", line):
            span(code, f"{path}:{number}", (root / path).parent, command)
    return text


def module_table(text):
    rows = dict(re.findall(r"^\| `(\w+)` \| .* \| ([\w, -]+) \|$", text.split("## How it is built")[1].split("### ")[0], re.M))
    allowed = dict(re.findall(r"^fourfold_may_use\((\w+) ?([\w ]*)\)", sources["modules/order.cmake"], re.M))
    built = {path.parent.name for path in (root / "modules").glob("*/CMakeLists.txt")} | {"kernels"}
    for module in sorted(built - {"kernels"}):
        check("module", module in rows, f"README.md: the table of modules has no row for {module}")
    for module, cell in rows.items():
        wanted = sorted(built & set(allowed.get(module, "").split()))
        given = sorted(re.findall(r"\w+", cell))
        check("module", module in built and given == wanted,
              f"README.md: {module} may include {given}, modules/order.cmake says {wanted} (of those that are built)")


def names_of_other_programs(text):
    """The README's table is that of modules/deck/aliases.cpp: the same names for the same keys, no more and no fewer."""
    table = sources["modules/deck/aliases.cpp"].split("kAliases[]")[1].split("struct ValueAlias")[0]
    wanted = {(name, key) for name, key in re.findall(r'\{"([\w.]+)",\s*(?:\w+|"\w+"),\s*"([\w.]+)"', table)}
    rows = re.findall(r"^\| `([\w.]+)` \| (.*) \|$", text.split("### Names of other programs")[1].split("\n### ")[0], re.M)
    given = {(name, key) for key, names in rows for name in names.split(", ")}
    check("alias", len(wanted) > 60, "modules/deck/aliases.cpp: its table cannot be read")
    for name, key in sorted(wanted ^ given):
        check("alias", False, f"README.md, names of other programs: {name} for {key} is in one of README and aliases.cpp only")


def pains_table():
    """Each row's tests are there: names after a path stand in that file, and a number in parentheses too."""
    rows = [line for line in (root / "tests/README.md").read_text().splitlines() if re.match(r"\| P\d\d ", line)]
    for row in rows:
        shown = row.split("|")[3]
        for path, names in re.findall(r"`([^`]+)`([^`]*)", shown):
            source = (root / "tests" / path).read_text()
            for name in re.findall(r"\b[A-Z]\w{8,}\b", names) + re.findall(r"\((P\d\d)", names):
                check("pain", name in source, f"tests/README.md: {row[2:5]}: {path} has no {name}")


readmes = sorted(str(path) for path in files if path.name == "README.md")
text = readme("README.md")
module_table(text)
names_of_other_programs(text)
pains_table()
for path in readmes:
    if path != "README.md":
        readme(path)
for folder in sorted(path.parent for path in (root / "modules").glob("*/CMakeLists.txt")):
    check("path", (folder / "README.md").exists(), f"{folder.relative_to(root)}: has no README.md")
for name in set(re.findall(r'"(FOURFOLD_[A-Z]+)"', code_text)):
    check("variable", f"{name}" in text, f"README.md: does not name {name}, which the program reads")
commands_named = re.findall(r"^\| `([a-z]+)` \|", text, re.M)
for command in commands:
    check("command", command in commands_named, f"README.md: the table of commands has no row for {command}")

for text in faults:
    print("FAILED:", text)
print(", ".join(f"{count} x {kind}" for kind, count in sorted(checked.items())) + f"; {len(faults)} faults")
wanted = {"path": 60, "name": 40, "option": 15, "key": 12, "command line": 6, "variable": 4, "module": 20, "pain": 30}
for kind, least in wanted.items():
    if checked.get(kind, 0) < least:
        sys.exit(f"only {checked.get(kind, 0)} x {kind} looked at: the READMEs are no longer read as they are written")
sys.exit(1 if faults else 0)
