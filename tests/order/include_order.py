#!/usr/bin/env python3
"""The one-way order of the modules, seen from four sides:

1. the table is what the design says (a few fixed rows), and a link that it forbids stops the configuration;
2. every include in modules/, kernels/ and app/ is one that the table allows, whether or not the file is compiled;
3. third-party headers are included by their owners only;
4. for every module that is built and every other module that it may not use, the compiler, called as the build calls it,
   does not find the other's header - and does find its own.
"""

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile

INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^">]+)[">]')

# Header (a pattern from its start) -> the folders that may include it.
OWNERS = {
    r"mpi\.h$": ["modules/comm", "modules/h5"],
    r"nccl\.h$": ["modules/comm"],
    r"cublas": ["kernels"],
    r"cuda_runtime": ["kernels", "modules/comm"],
    r"hdf5": ["modules/h5"],
    r"H5": ["modules/h5"],
    r"yaml-cpp/": ["modules/deck"],
    r"spdlog/": ["modules/base"],
    r"pcre2": ["modules/data"],
    r"sentencepiece": ["modules/data"],
    r"(oneapi/)?dnnl": ["kernels"],
    r"cblas": ["kernels"],
}
# Costly to compile: not in headers.
NOT_IN_HEADERS = [r"nlohmann/(?!json_fwd\.hpp$)", r"CLI/", r"fmt/format\.h$"]

faults = []


def fault(text):
    faults.append(text)
    print("FAULT: " + text)


def run(command, **options):
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True, **options)


def read_table(arguments):
    """module -> the set of modules it may use, from modules/order.cmake."""
    script = os.path.join(arguments.source, "tests", "order", "check_links.cmake")
    listing = run([arguments.cmake, "-DLIST=ON", "-P", script]).stdout
    table = {}
    for line in listing.splitlines():
        module, _, allowed = line.partition(":")
        table[module.strip()] = set(allowed.split())
    return table


def check_table(arguments, table):
    expected = {
        "kernels": set(),
        "base": set(),
        "grid": {"base"},
        "comm": {"grid", "machine", "base"},
        "h5": {"comm", "grid", "machine", "base"},
        "graph": {"grid", "machine", "base"},
        "optim": {"tensor", "comm", "kernels", "grid", "machine", "base", "deck"},
    }
    for module, allowed in expected.items():
        if table.get(module) != allowed:
            fault(f"the table lets {module} use {table.get(module)}, the design says {allowed}")
    for module, allowed in table.items():
        if module in allowed:
            fault(f"the table has a cycle through {module}")
    script = os.path.join(arguments.source, "tests", "order", "check_links.cmake")
    for module, links, legal in [
        ("grid", "base", True),
        ("grid", "base;comm", False),
        ("comm", "base;grid;dependency_mpi", True),
        ("deck", "dependency_mpi", False),
        ("deck", "grid;dependency_yaml", True),
        ("kernels", "base", False),
        ("train", "kernels;grid", True),
        ("nonsense", "base", False),
    ]:
        result = run([arguments.cmake, f"-DMODULE={module}", f"-DLINKS={links}", "-P", script])
        refused = result.returncode != 0 and re.search("may not (use|link)|does not know the module", result.stdout)
        if bool(refused) == legal or (legal and result.returncode != 0):
            fault(f"{module} linking {links}: expected {'no error' if legal else 'an error'}, got\n{result.stdout}")


def sources(arguments):
    for top in ("modules", "kernels", "app"):
        for folder, _, files in os.walk(os.path.join(arguments.source, top)):
            for name in sorted(files):
                if name.endswith((".hpp", ".cpp", ".cu", ".cuh")):
                    yield os.path.relpath(os.path.join(folder, name), arguments.source)


def check_includes(arguments, table):
    count = 0
    for path in sources(arguments):
        parts = path.split(os.sep)
        module = "app" if parts[0] == "app" else "kernels" if parts[0] == "kernels" else parts[1]
        with open(os.path.join(arguments.source, path), encoding="utf-8") as text:
            headers = [match.group(1) for match in map(INCLUDE.match, text) if match]
        for header in headers:
            count += 1
            first = header.split("/")[0]
            if module == "base" and header == "kernels/philox.hpp":
                continue  # the one kernel header without Kokkos, shared with host code
            if "/" in header and first in table and module != "app":
                if first != module and first not in table[module]:
                    fault(f"{path} includes {header}: {module} may not use {first}")
            if first == "tests" or (first == "app" and module != "app") or ".." in header.split("/"):
                fault(f"{path} includes {header}")
            for pattern, owners in OWNERS.items():
                if re.match(pattern, header) and not any(path.startswith(owner + os.sep) for owner in owners):
                    fault(f"{path} includes {header}, which belongs to {', '.join(owners)}")
            for pattern in NOT_IN_HEADERS:
                if re.match(pattern, header) and path.endswith(".hpp"):
                    fault(f"{path} includes {header}: in .cpp files only")
    print(f"{count} includes looked at")
    if count < 100:
        fault("too few includes were found: is the source folder right?")


def compile_flags(arguments):
    """module -> (folder, compiler and its flags as for one source of the module, without the source and output)."""
    with open(os.path.join(arguments.build, "compile_commands.json"), encoding="utf-8") as text:
        commands = json.load(text)
    flags = {}
    for entry in commands:
        path = os.path.relpath(os.path.realpath(entry["file"]), os.path.realpath(arguments.source)).split(os.sep)
        module = "kernels" if path[0] == "kernels" else path[1] if path[0] == "modules" and len(path) > 2 else None
        if module is None or path[-1].endswith(".cu"):
            continue
        words = shlex.split(entry["command"])
        words = words[words.index(arguments.compiler) :]  # without ccache
        kept, skip = [], False
        for word in words:
            if skip:
                skip = False
            elif word in ("-o", "-c", "-MT", "-MF", "-include"):
                skip = word != "-c"
            elif word not in ("-MD", "-Winvalid-pch", "-fpch-preprocess") and word != entry["file"]:
                kept.append(word)
        # The first source of the module's own library: a second library of the folder may see less.
        if module not in flags or f"/{module}.dir/" in entry["command"]:
            flags[module] = (entry["directory"], kept)
    return flags


def check_compiler(arguments, table):
    flags = compile_flags(arguments)
    headers = {}  # module -> its headers
    for path in sources(arguments):
        parts = path.split(os.sep)
        if path.endswith(".hpp") and parts[0] in ("modules", "kernels"):
            module = "kernels" if parts[0] == "kernels" else parts[1]
            name = "/".join(["kernels"] + parts[1:] if parts[0] == "kernels" else parts[1:])
            if name != "kernels/philox.hpp":
                headers.setdefault(module, []).append(name)
    forbidden = 0
    with tempfile.TemporaryDirectory() as folder:
        probe = os.path.join(folder, "probe.cpp")

        def compiles(module, header):
            with open(probe, "w", encoding="utf-8") as text:
                text.write(f'#include "{header}"\n')
            directory, command = flags[module]
            return run(command + ["-E", "-o", os.devnull, probe], cwd=directory)

        for module in flags:
            if module not in headers:
                continue
            # (A module's second library may have headers that the first cannot include.)
            if all(compiles(module, header).returncode != 0 for header in headers[module]):
                fault(f"{module} can include none of its own headers: the flags above are not the build's")
            for other, names in headers.items():
                if other == module or other in table[module]:
                    continue
                forbidden += 1
                result = compiles(module, names[0])
                if result.returncode == 0 or names[0] not in result.stdout or "No such file" not in result.stdout:
                    fault(f"{module} can include {names[0]}")
    print(f"{forbidden} forbidden includes do not compile, in {len(flags)} modules")
    if forbidden == 0:
        fault("no forbidden include was tried")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--source", required=True)
    parser.add_argument("--build", required=True)
    parser.add_argument("--cmake", default="cmake")
    parser.add_argument("--compiler", required=True)
    arguments = parser.parse_args()
    table = read_table(arguments)
    check_table(arguments, table)
    check_includes(arguments, table)
    check_compiler(arguments, table)
    print(f"{len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
