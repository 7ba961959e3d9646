"""What a library asks of a machine, and a wheel with more files in it."""

import base64
import dataclasses
import hashlib
import platform
import re
import subprocess
import tempfile
import zipfile
from pathlib import Path

# The least glibc of the distributions that have a libstdc++ with these names (the policies of manylinux).
GLIBC_OF_LIBSTDCXX = {(3, 4, 24): (2, 28), (3, 4, 29): (2, 34), (3, 4, 30): (2, 35), (3, 4, 32): (2, 39), (3, 4, 33): (2, 40)}


@dataclasses.dataclass
class Facts:
    needed: list  # names of libraries
    run_path: str
    glibc: tuple  # the newest that a name of it asks for
    libstdcxx: tuple


def _newest(text, prefix):
    found = [tuple(map(int, version.split("."))) for version in re.findall(rf"\b{prefix}_(\d+(?:\.\d+)+)\b", text)]
    return max(found, default=(0,))


def facts_of(library):
    def readelf(option):
        return subprocess.run(["readelf", option, "-W", library], capture_output=True, text=True, check=True).stdout

    dynamic, versions = readelf("-d"), readelf("-V")
    path = re.search(r"\((?:RPATH|RUNPATH)\).*\[(.*)\]", dynamic)
    return Facts(re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic), path[1] if path else "", _newest(versions, "GLIBC"), _newest(versions, "GLIBCXX"))


def platform_tag(files):
    """The manylinux that has what all of the files ask for. Their torch comes from elsewhere."""
    facts = [facts_of(file) for file in files]
    glibc = max(fact.glibc for fact in facts)
    libstdcxx = max(fact.libstdcxx for fact in facts)
    enough = [least for version, least in sorted(GLIBC_OF_LIBSTDCXX.items()) if version >= libstdcxx]
    if not enough:
        raise SystemExit(f"koila: no manylinux is known to have GLIBCXX_{'.'.join(map(str, libstdcxx))}")
    major, minor = max(glibc, enough[0])
    return f"manylinux_{major}_{minor}_{platform.machine()}"


def _record(name, data):
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f"{name},sha256={digest},{len(data)}\n"


def with_adapters(base, adapters, out):
    """The wheel `base` and, of each folder of an adapter, libkoila_torch.so and libkoila_torch.version in koila/lib/NAME, as a new wheel in `out`."""
    with zipfile.ZipFile(base) as wheel:
        files = {entry: wheel.read(entry) for entry in wheel.infolist()}
    entries = {entry.filename: entry for entry in files}
    data = {entry.filename: content for entry, content in files.items()}
    for name, folder in sorted(adapters.items()):
        for file in ("libkoila_torch.so", "libkoila_torch.version"):
            data[f"koila/lib/{name}/{file}"] = (folder / file).read_bytes()
    distribution, version = base.name.split("-")[:2]
    info = f"{distribution}-{version}.dist-info"
    tag = f"py3-none-{_tag_of(data, adapters)}"
    data[f"{info}/WHEEL"] = re.sub(rb"(?m)^Tag: .*\n?", b"", data[f"{info}/WHEEL"]).rstrip(b"\n") + f"\nTag: {tag}\n".encode()
    record = f"{info}/RECORD"
    del data[record]
    data[record] = ("".join(_record(name, content) for name, content in data.items()) + f"{record},,\n").encode()
    out.mkdir(parents=True, exist_ok=True)
    made = out / f"{distribution}-{version}-{tag}.whl"
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, content in data.items():
            entry = zipfile.ZipInfo(name)  # no date: the same sources give the same wheel
            entry.external_attr = entries[name].external_attr if name in entries else 0o100644 << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            wheel.writestr(entry, content)
    return made


def _tag_of(data, adapters):
    with tempfile.TemporaryDirectory() as folder:
        own = [Path(folder) / Path(name).name for name in ("koila/lib/libkoila.so", "koila/bin/koila")]
        for file in own:
            file.write_bytes(next(content for name, content in data.items() if name.endswith(f"/{file.name}")))
        return platform_tag([*own, *(adapter / "libkoila_torch.so" for adapter in adapters.values())])
