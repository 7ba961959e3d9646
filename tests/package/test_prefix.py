"""`meson install`: what other builds find koila by, and that uninstalling leaves nothing."""

import json
import pathlib
import sys

from packages import ROOT, run, tree

PROGRAM = """
#include <koila/koila.h>
#include <stdio.h>
#include <string.h>

int main(void) {
  if (koila_live_bytes(-1) != 0) return 1;
  return puts(koila_version()) < 0;
}
"""

CMAKE = """
cmake_minimum_required(VERSION 3.18)
project(uses_koila C)
find_package(koila {version} REQUIRED)
add_executable(program program.c)
target_link_libraries(program koila::koila)
file(GENERATE OUTPUT preload CONTENT $<TARGET_FILE:koila::koila>)
file(GENERATE OUTPUT headers CONTENT $<TARGET_PROPERTY:koila::headers,INTERFACE_INCLUDE_DIRECTORIES>)
"""


def meson(*arguments, cwd, **more):
    return run(sys.executable, "-m", "mesonbuild.mesonmain", *arguments, cwd=cwd, **more)


def check_by_pkg_config(library, folder, **environment):
    flags = run("pkg-config", "--cflags", "--libs", "koila", cwd=folder, **environment).split()
    run("cc", "program.c", "-o", "by_pkg_config", *flags, cwd=folder)
    return run("./by_pkg_config", cwd=folder, LD_LIBRARY_PATH=str(library.parent)).strip()


def check_by_cmake(prefix, library, version, folder):
    (folder / "CMakeLists.txt").write_text(CMAKE.format(version=version))
    run("cmake", "-S", ".", "-B", "by_cmake", f"-DCMAKE_PREFIX_PATH={prefix}", cwd=folder)
    run("cmake", "--build", "by_cmake", cwd=folder)
    assert (folder / "by_cmake" / "preload").read_text() == str(library)
    assert (folder / "by_cmake" / "headers").read_text() == str(prefix / "include")
    return run("by_cmake/program", cwd=folder).strip()


def test_a_prefix_is_of_use_and_leaves_nothing(packages, tmp_path):
    """In the build folder of the wheel: configured for a prefix, everything but the command is compiled already."""
    prefix, work = tmp_path / "prefix", tmp_path / "work"
    prefix.mkdir()
    work.mkdir()
    (work / "program.c").write_text(PROGRAM)
    (prefix / "of_another").write_text("stays")
    before = tree(prefix)
    meson("configure", packages.build, "-Dpython_package=false", f"-Dprefix={prefix}", cwd=tmp_path)
    meson("install", "-C", packages.build, cwd=tmp_path)

    library = next(prefix.glob("lib*/**/libkoila.so"))
    command = prefix / "bin" / "koila"
    version = run(command, "--version", cwd=tmp_path).split()[1]
    assert check_by_pkg_config(library, work, PKG_CONFIG_PATH=str(library.parent / "pkgconfig")) == version
    assert run("pkg-config", "--variable=preload", "koila", cwd=work, PKG_CONFIG_PATH=str(library.parent / "pkgconfig")).strip() == str(library)
    assert check_by_cmake(prefix, library, version, work) == version
    assert tree(prefix / "include" / "koila") == tree(ROOT / "include" / "koila")
    pages = prefix / "share" / "doc" / "koila"
    assert (pages / "docs" / "install.md").exists()
    for installed, name in (("LICENSE", "LICENSE"), ("LICENSE.uplot", "third_party/uplot/LICENSE"), ("CHANGELOG.md", "CHANGELOG.md")):
        assert (pages / installed).read_bytes() == (ROOT / name).read_bytes()
    # The command finds the library from where it is itself.
    moved = tmp_path / "moved"
    prefix.rename(moved)
    loaded = "import os; print([line.split()[-1] for line in open('/proc/self/maps') if 'libkoila.so' in line][0])"
    assert run(moved / "bin" / "koila", "run", "--", sys.executable, "-c", loaded, cwd=tmp_path, KOILA_REPORT="off").split()[-1] \
        == str(moved / library.relative_to(prefix))
    moved.rename(prefix)

    run("ninja", "-C", packages.build, "uninstall", cwd=tmp_path)
    assert tree(prefix) == before

    stage = tmp_path / "stage"
    stage.mkdir()
    meson("install", "-C", packages.build, cwd=tmp_path, DESTDIR=str(stage))
    assert tree(prefix) == before
    staged = stage / library.relative_to("/")
    assert check_by_pkg_config(staged, work, PKG_CONFIG_PATH=str(staged.parent / "pkgconfig"), PKG_CONFIG_SYSROOT_DIR=str(stage)) == version
    run("ninja", "-C", packages.build, "uninstall", cwd=tmp_path)
    assert tree(stage) == {}


def test_the_adapter_goes_beside_the_library():
    """Where the preload looks for it, with the file that says for which torch it is."""
    plan = json.loads((ROOT / "build" / "meson-info" / "intro-install_plan.json").read_text())
    places = {pathlib.Path(source).name: pathlib.PurePath(facts["destination"]) for files in plan.values() for source, facts in files.items()}
    folders = {str(places[name].parent).replace("{libdir_shared}", "{libdir}") for name in
               ("libkoila.so", "libkoila_torch.so", "libkoila_torch.version")}
    assert folders == {"{libdir}"}
