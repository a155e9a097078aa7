"""A library that is linked for an older glibc needs no newer symbol, and runs on this machine's too."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CMAKE = Path(__file__).resolve().parents[2] / "cmake"
SOURCE = r"""
#include <cerrno>
#include <cmath>
#include <ctime>
#include <fstream>
#include <pthread.h>
#include <random>
#include <stdexcept>
#include <string>
#include <sys/stat.h>
#include <thread>

// Returns the size of a file, or throws.
static long size_of(const std::string & path) {
    struct stat found;
    if (stat(path.c_str(), &found) || !std::ifstream(path)) throw std::runtime_error(path);
    return found.st_size;
}

// Tells whether a wait of 20 ms on the steady clock ends by itself, and not early.
static bool waits() {
    pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    pthread_cond_t never = PTHREAD_COND_INITIALIZER;
    const auto clock = [] {
        timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        return now.tv_sec * 1000000000LL + now.tv_nsec;
    };
    const long long end = clock() + 20000000;
    const timespec until = {end / 1000000000, end % 1000000000};
    pthread_mutex_lock(&mutex);
    const int result = pthread_cond_clockwait(&never, &mutex, CLOCK_MONOTONIC, &until);
    return result == ETIMEDOUT && clock() > end - 1000000;
}

// The names that glibc 2.38 has for functions that take numbers from text.
extern "C" long __isoc23_strtol(const char *, char **, int);
extern "C" unsigned long long __isoc23_strtoull(const char *, char **, int);
extern "C" int __isoc23_sscanf(const char *, const char *, ...);

// Returns the sum of the numbers in "-12 0x20 7".
extern "C" long sum() {
    char * end;
    const char * text = "-12 0x20 7";
    const long first = __isoc23_strtol(text, &end, 10);
    const unsigned long long second = __isoc23_strtoull(end, &end, 16);
    int third = 0;
    return __isoc23_sscanf(end, "%d", &third) == 1 ? first + (long)second + third : 0;
}

extern "C" double two_to(double exponent) { return std::pow(std::random_device()() ? 2.0 : 2.0, exponent); }
extern "C" long attempt(const char * path) {
    long result = 0;
    std::thread([&] {
        try {
            result = size_of(path);
        } catch (const std::exception & error) {
            result = waits() ? -1 : -2;
        }
    }).join();
    return result;
}
"""
USE = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
library.two_to.argtypes, library.two_to.restype = [ctypes.c_double], ctypes.c_double
library.attempt.restype = library.sum.restype = ctypes.c_long
print(library.sum(), library.two_to(0.5))
print(library.attempt(sys.argv[2].encode()), library.attempt(b"/no/such/file"))
"""


@pytest.fixture
def compiler() -> str:
    if (found := shutil.which("g++")) is None or sys.platform != "linux":
        pytest.skip("no g++")
    return found


def test_newest_version_that_the_older_glibc_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(CMAKE))
    import old_glibc

    listing = "\n".join([
        "0000000000010000 T pow@GLIBC_2.2.5", "0000000000010400 T pow@@GLIBC_2.29",
        "0000000000010000 T fork@@GLIBC_2.2.5", "0000000000010000 i memcpy@@GLIBC_2.14",
        "0000000000010000 T memcpy@GLIBC_2.2.5", "0000000000010000 T getcpu@@GLIBC_2.29",
        "0000000000010000 V environ@@GLIBC_2.2.5", "0000000000010000 T __private@@GLIBC_PRIVATE",
    ])  # fmt: skip
    found = old_glibc.symbols(listing, (2, 28))
    assert found == {
        "pow": ("function", (2, 2, 5)), "fork": ("function", (2, 2, 5)),
        "memcpy": ("function", (2, 14)), "environ": ("object", (2, 2, 5)),
    }  # fmt: skip
    assert old_glibc.version_script(found) == (
        "GLIBC_2.2.5 { environ; fork; pow; };\nGLIBC_2.14 { memcpy; };\n"
    )


@pytest.mark.parametrize("newer", ["found", "missing"])
def test_a_library_for_an_older_glibc(compiler: str, tmp_path: Path, newer: str) -> None:
    """It uses the running glibc's newer functions if that has them, and has its own ones otherwise."""
    source, program, hides = tmp_path / "use.cpp", tmp_path / "use.py", tmp_path / "hides.h"
    source.write_text(SOURCE)
    program.write_text(USE)
    hides.write_text("#define _GNU_SOURCE\n#include <dlfcn.h>\n#define dlsym(library, name) NULL\n")
    subprocess.run([sys.executable, CMAKE / "old_glibc.py", "2.28", tmp_path / "glibc"], check=True)
    own, library = tmp_path / "own.o", tmp_path / "libuse.so"
    options = [] if newer == "found" else ["-include", hides]
    words = [compiler, "-x", "c", "-fPIC", "-fvisibility=hidden", *options, "-c", CMAKE / "old_glibc.c"]
    subprocess.run([*words, "-o", own], check=True)
    words = [compiler, "-shared", "-fPIC", "-static-libstdc++", f"-L{tmp_path / 'glibc'}", source, own]
    libraries = ["-Wl,--no-undefined,--no-as-needed", "-lpthread", "-ldl"]
    subprocess.run([*words, *libraries, "-o", library], check=True)
    listed = subprocess.check_output(["nm", "-D", library], text=True)
    needed = re.findall(r" U \w+@GLIBC_([\d.]+)", listed)
    assert max(tuple(map(int, version.split("."))) for version in needed) <= (2, 28)
    assert "@GLIBCXX" not in listed
    done = subprocess.run(
        [sys.executable, program, library, program], check=True, capture_output=True, text=True
    ).stdout
    assert done.split() == ["27", repr(2**0.5), str(program.stat().st_size), "-1"]


def test_a_symbol_that_came_later_is_not_linked(compiler: str, tmp_path: Path) -> None:
    source = tmp_path / "late.c"
    source.write_text("int getcpu(unsigned *, unsigned *);\nint late(void) { return getcpu(0, 0); }\n")
    subprocess.run([sys.executable, CMAKE / "old_glibc.py", "2.28", tmp_path / "glibc"], check=True)
    done = subprocess.run(
        [compiler, "-shared", "-fPIC", "-x", "c", source, f"-L{tmp_path / 'glibc'}", "-Wl,--no-undefined",
         "-o", tmp_path / "late.so"], capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode
    assert "getcpu" in done.stderr
