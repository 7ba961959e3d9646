"""How koila meets torch, stays out when it must, and writes its report at the end."""

import json
import pathlib
import shutil
import sys

import pytest
from preload import BUILD, Preload

BEHIND_TORCH = "koila: koila stays out: libkoila.so must come before torch's libraries in LD_PRELOAD, and where a program is linked to it"
STEP = "import torch; x = torch.ones(3, requires_grad=True); (x * 2).sum().backward(); "


def koila_lines(stderr: str) -> list[str]:
    return [line for line in stderr.splitlines() if line.startswith("koila: ")]


def test_python_attaches_once_with_every_hook(fake: Preload) -> None:
    done = fake.python(STEP + "print(x.grad.numpy()); import torch._C")
    assert (done.returncode, done.stdout, done.stderr) == (0, "[2. 2. 2.]\n", "")
    trace = fake.trace()
    assert trace[0].startswith("attach torch=2.") and "found=13" in trace[0] and "python=1" in trace[0]
    assert trace[1:] == ["execute", "to_numpy"]


def test_the_version_is_the_running_torchs(fake: Preload) -> None:
    done = fake.python("import torch; print(torch.__version__)")
    assert fake.trace()[0].split()[1] == "torch=" + done.stdout.strip()


def test_hooks_pass_through_when_the_adapter_declines(fake: Preload) -> None:
    done = fake.python(
        STEP + "print(x.grad.numpy(), x.untyped_storage().nbytes(), torch.from_dlpack(x.detach()), "
        "torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(x.detach())))",
        FAKE_GLUE_FAIL="1",
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "[2. 2. 2.] 12 tensor([1., 1., 1.]) tensor([1., 1., 1.])\n"


@pytest.mark.parametrize("sort", ["1", "2"])
def test_libtorch_program_attaches_after_torchs_initialisers_and_before_its_own(fake: Preload, libtorch_program: str, sort: str) -> None:
    """Under both of the loader's orders of initialisation."""
    done = fake.run(libtorch_program, GLIBC_TUNABLES=f"glibc.rtld.dynamic_sort={sort}")
    assert (done.returncode, done.stdout, done.stderr) == (0, "2 2\n", "")
    attach, *rest = fake.trace()
    assert "torch=2." in attach
    assert int(attach.split("operators=")[1].split()[0]) > 1000
    assert rest == ["execute", "execute"], "one of them ran before main"


def test_torch_ahead_of_koila_in_the_preload_keeps_koila_out(fake: Preload, libtorch_program: str) -> None:
    import torch

    torch_cpu = pathlib.Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    done = fake.run(libtorch_program, LD_PRELOAD=f"{torch_cpu}:{fake.library}")
    assert (done.returncode, done.stdout) == (0, "2 2\n")
    assert koila_lines(done.stderr) == [BEHIND_TORCH]
    assert fake.trace() == []


def test_linked_behind_torch_keeps_koila_out(real: Preload) -> None:
    done = real.run(str(BUILD / "tests" / "shim" / "linked_behind_torch"), LD_PRELOAD="")
    assert (done.returncode, done.stdout) == (0, "2 2\n")
    assert koila_lines(done.stderr) == [BEHIND_TORCH]


def test_mode_off_loads_nothing(fake: Preload) -> None:
    done = fake.python(STEP + "print('libkoila_torch' in open('/proc/self/maps').read())", KOILA_MODE="off", KOILA_NONSENSE="1")
    assert (done.returncode, done.stdout, done.stderr) == (0, "False\n", "")
    assert fake.trace() == []


def test_settings_arrive(fake: Preload, tmp_path: pathlib.Path) -> None:
    fake.python("import torch", KOILA_MODE="lazy", KOILA_MICROBATCH="7", KOILA_CPU_MEMORY="1GiB", KOILA_SPILL_DIR=str(tmp_path), KOILA_REPORT="off")
    assert f"mode=3 microbatch=7 budget={1 << 30} spill={tmp_path} policy=0 ladder=7 cache= " in fake.trace()[0]


def test_the_cache_has_a_whole_path(fake: Preload, tmp_path: pathlib.Path) -> None:
    done = fake.python("import os; print(os.getpid()); import torch", cwd=tmp_path, KOILA_CACHE="sizes-%p.json", KOILA_POLICY="pow2", KOILA_LADDER="2,0,3")
    assert f" policy=1 ladder=5 cache={tmp_path}/sizes-{done.stdout.strip()}.json " in fake.trace()[0]


class TestAnotherTorch:
    def test_is_said_once_and_runs_without_koila(self, fake: Preload) -> None:
        (fake.folder / "libkoila_torch.version").write_text("2.11.0+cu126\n")
        done = fake.python(STEP + "print(x.grad.numpy())")
        assert (done.returncode, done.stdout) == (0, "[2. 2. 2.]\n")
        (line,) = done.stderr.splitlines()
        assert "torch 2.13.0" in line and "torch 2.11.0+cu126" in line and "docs/install.md" in line
        assert fake.trace() == []

    def test_another_build_of_the_same_release_is_the_same(self, fake: Preload) -> None:
        (fake.folder / "libkoila_torch.version").write_text("2.13.0+cu130\n")
        assert fake.python("import torch").stderr == ""
        assert len(fake.trace()) == 1

    def test_of_several_adapters_the_one_for_the_release_that_runs_is_taken(self, fake: Preload) -> None:
        """The others would not even load: their files hold no library."""
        for release in ("2.11.0", "2.12.1", "2.15.0"):
            (fake.folder / f"torch-{release}").mkdir()
            (fake.folder / f"torch-{release}" / "libkoila_torch.so").write_text("no library\n")
            (fake.folder / f"torch-{release}" / "libkoila_torch.version").write_text(release + "\n")
        ours = fake.folder / "torch-2.13.0"
        ours.mkdir()
        for name in ("libkoila_torch.so", "libkoila_torch.version"):
            (fake.folder / name).rename(ours / name)
        done = fake.python(STEP + "print([line.split()[-1] for line in open('/proc/self/maps') if 'libkoila_torch' in line][0])")
        assert (done.stdout, done.stderr) == (f"{ours / 'libkoila_torch.so'}\n", "")
        assert fake.trace()[0].startswith("attach torch=2.13.0")

    def test_of_several_adapters_for_other_releases_all_are_named(self, fake: Preload) -> None:
        (fake.folder / "libkoila_torch.version").write_text("2.12.1\n")
        for release in ("2.9.0", "2.13.1"):
            (fake.folder / f"torch-{release}").mkdir()
            shutil.copy(fake.folder / "libkoila_torch.so", fake.folder / f"torch-{release}")
            (fake.folder / f"torch-{release}" / "libkoila_torch.version").write_text(release + "\n")
        done = fake.python(STEP + "print(x.grad.numpy())")
        assert (done.returncode, done.stdout) == (0, "[2. 2. 2.]\n")
        (line,) = done.stderr.splitlines()
        assert "runs torch 2.13.0" in line and "koila was built for torch 2.9.0, 2.12.1 and 2.13.1;" in line
        assert fake.trace() == []

    @pytest.mark.parametrize("missing", ["libkoila_torch.version", "libkoila_torch.so"])
    def test_missing_files_are_said_once(self, fake: Preload, missing: str) -> None:
        (fake.folder / missing).unlink()
        done = fake.python(STEP + "print(x.grad.numpy())")
        assert (done.returncode, done.stdout) == (0, "[2. 2. 2.]\n")
        assert len(koila_lines(done.stderr)) == len(done.stderr.splitlines()) == 1
        assert "libkoila_torch" in done.stderr

    def test_libtorch_program_too(self, fake: Preload, libtorch_program: str) -> None:
        (fake.folder / "libkoila_torch.version").write_text("2.11.0\n")
        done = fake.run(libtorch_program)
        assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (0, "2 2\n", 1)


class TestBadValues:
    def test_one_line_each_and_the_exit_status_stands(self, fake: Preload) -> None:
        bad = {
            "KOILA_CPU_MEMORY": ("lots", "using no budget"),
            "KOILA_MODE": ("on", "using rescue"),
            "KOILA_MICROBATCH": ("0", "using no fixed micro-batch"),
            "KOILA_INJECT_OOM": ("nth:x", "using none"),
            "KOILA_REPORT": ("a.xml", "using stderr"),
            "KOILA_SPILL_DIR": ("/nonexistent", "using /"),
            "KOILA_LOG_FILE": ("/dev/null/log", "logging to stderr"),
            "KOILA_CPU_MEMROY": ("1GiB", "did you mean KOILA_CPU_MEMORY?"),
        }
        done = fake.python("import torch, sys; sys.exit(7)", **{name: value for name, (value, _) in bad.items()})
        assert done.returncode == 7
        lines = done.stderr.splitlines()
        assert len(lines) == len(bad)
        for name, (value, expected) in bad.items():
            (line,) = (line for line in lines if name in line.split("did you mean")[0])
            assert line.startswith("koila: ") and expected in line, value
        assert len(fake.trace()) == 1, "koila works on"

    @pytest.mark.parametrize("bad", [{"KOILA_CPU_MEMORY": "lots"}, {"KOILA_NONSENSE": "1"}, {"KOILA_SPILL_DIR": "/nonexistent"}])
    def test_strict_keeps_koila_out_and_the_program_in(self, fake: Preload, bad: dict[str, str]) -> None:
        done = fake.python("import torch, sys; sys.exit(7)", KOILA_STRICT="1", **bad)
        assert done.returncode == 7
        assert len(done.stderr.splitlines()) == 2 and "KOILA_STRICT" in done.stderr.splitlines()[1]
        assert fake.trace() == []

    def test_strict_without_errors_works(self, fake: Preload) -> None:
        assert fake.python("import torch", KOILA_STRICT="1").stderr == ""
        assert len(fake.trace()) == 1


class TestReport:
    def test_nothing_to_tell_is_nothing_told(self, fake: Preload) -> None:
        assert fake.python("import torch; torch.ones(3)").stderr == ""

    def test_goes_to_stderr_after_a_step(self, fake: Preload) -> None:
        lines = fake.python("import torch", FAKE_GLUE_DO="step").stderr.splitlines()
        assert lines[0].startswith("koila: 1 step, nothing ran out; pid ")

    def test_rescues_are_logged_once_and_counted(self, fake: Preload) -> None:
        lines = fake.python("import torch", FAKE_GLUE_DO="rescue rescue rescue refuse").stderr.splitlines()
        assert [line.startswith("koila: rescued: ") for line in lines].count(True) == 1
        assert [line.startswith("koila: refused: ") for line in lines].count(True) == 1
        assert "koila: 0 steps, 3 rescues, 1 refusal" in lines[2]
        assert any("running out cost" in line for line in lines[3:])

    def test_files_are_written_by_suffix(self, fake: Preload, tmp_path: pathlib.Path) -> None:
        done = fake.python("import torch, os; print(os.getpid())", FAKE_GLUE_DO="rescue step reserve", KOILA_REPORT=f"{tmp_path}/r-%p.json,{tmp_path}/r.txt", KOILA_LOG="error")
        assert done.stderr == ""
        report = json.loads((tmp_path / f"r-{done.stdout.strip()}.json").read_text())
        assert report["schema"] == 1 and report["steps"] == 1 and report["oom_events"][0]["op"] == "aten::linear"
        assert report["devices"]["cpu"]["peak_bytes"] == 1 << 20
        assert (tmp_path / "r.txt").read_text().startswith("koila: 1 step")

    def test_a_relative_path_is_of_the_folder_at_the_start(self, fake: Preload, tmp_path: pathlib.Path) -> None:
        elsewhere = tmp_path / "elsewhere"
        elsewhere.mkdir()
        done = fake.run(sys.executable, "-c", f"import torch, os; os.chdir({str(elsewhere)!r})", FAKE_GLUE_DO="step", KOILA_REPORT="r.txt", cwd=tmp_path)
        assert done.stderr == ""
        assert (tmp_path / "r.txt").exists() and not list(elsewhere.iterdir())

    @pytest.mark.parametrize("end", ["", "sys.exit(3)", "raise RuntimeError('mine')"])
    def test_unwritable_path_is_one_line_and_the_exit_status_stands(self, fake: Preload, end: str) -> None:
        code = f"import torch, sys; {end}"
        with_koila = fake.python(code, KOILA_REPORT="/nonexistent/report.json")
        without = fake.python(code, KOILA_MODE="off")
        assert with_koila.returncode == without.returncode
        assert koila_lines(with_koila.stderr) == ["koila: cannot write the report /nonexistent/report.json: No such file or directory"]

    def test_off_writes_none(self, fake: Preload) -> None:
        assert fake.python("import torch", FAKE_GLUE_DO="step", KOILA_REPORT="off").stderr == ""

    def test_log_file_takes_the_lines(self, fake: Preload, tmp_path: pathlib.Path) -> None:
        done = fake.python("import torch", FAKE_GLUE_DO="rescue", KOILA_REPORT="off", KOILA_LOG_FILE=str(tmp_path / "k-%p.log"))
        assert done.stderr == ""
        (log,) = tmp_path.glob("k-*.log")
        assert "rescued: out of memory in aten::linear" in log.read_text()


class TestChildren:
    def test_fork_without_events_writes_nothing(self, fake: Preload) -> None:
        done = fake.python("import torch, os, sys; pid = os.fork(); pid and os.waitpid(pid, 0); sys.exit(0)", FAKE_GLUE_DO="step")
        assert done.stderr.count("koila: 1 step") == 1

    def test_fork_that_was_rescued_tells_of_its_own_events(self, fake: Preload) -> None:
        code = (
            "import torch, os, sys, ctypes\n"
            f"do = ctypes.CDLL({str(fake.folder / 'libkoila_torch.so')!r}).fake_glue_do\n"
            "pid = os.fork()\n"
            "if pid == 0: do(b'rescue')\n"
            "else: os.waitpid(pid, 0)\n"
        )
        lines = fake.python(code, FAKE_GLUE_DO="step step refuse").stderr.splitlines()
        heads = [line for line in lines if "; pid" in line]
        assert heads[0].startswith("koila: 0 steps, 1 rescue; ") and heads[1].startswith("koila: 2 steps, ") and ", 1 refusal; " in heads[1]

    def test_fork_has_its_own_budget(self, fake: Preload) -> None:
        code = (
            "import torch, os, ctypes\n"
            f"do = ctypes.CDLL({str(fake.folder / 'libkoila_torch.so')!r}).fake_glue_do\n"
            "do(b'reserve reserve')\n"
            "pid = os.fork()\n"
            "if pid == 0: do(b'reserve reserve'); os._exit(0)\n"
            "os.waitpid(pid, 0)\n"
        )
        fake.python(code, KOILA_CPU_MEMORY="1536KiB", KOILA_REPORT="off")
        assert fake.trace()[1:] == ["reserve 0", "reserve 1", "reserve 0", "reserve 1"]

    @pytest.mark.parametrize("which", ["fake", "real"])
    @pytest.mark.parametrize("start", ["fork", "spawn", "forkserver"])
    def test_data_loader_workers(self, request: pytest.FixtureRequest, tmp_path: pathlib.Path, start: str, which: str) -> None:
        script = tmp_path / "load.py"
        script.write_text(
            "import sys, torch\n"
            "from torch.utils.data import DataLoader, TensorDataset\n"
            "if __name__ == '__main__':\n"
            "    data = TensorDataset(torch.arange(64.0).view(32, 2))\n"
            "    loader = DataLoader(data, batch_size=8, num_workers=2, multiprocessing_context=sys.argv[1])\n"
            "    print(sum(x.sum().item() for (x,) in loader))\n"
        )
        preload = request.getfixturevalue(which)
        done = preload.run(sys.executable, str(script), start, KOILA_CPU_MEMORY="1GiB", TMPDIR=str(tmp_path))
        assert (done.returncode, done.stdout) == (0, "2016.0\n")
        heads = [line for line in done.stderr.splitlines() if "; pid" in line]
        assert len(heads) == 1, "the program's own report and none of a worker"
        assert not list(tmp_path.glob("koila-*/*")), "no record of a worker"
        assert len(koila_lines(done.stderr)) == len(done.stderr.splitlines()), done.stderr

    def test_python_children_with_torch(self, fake: Preload) -> None:
        done = fake.python("import torch, subprocess, sys; subprocess.check_call([sys.executable, '-c', 'import torch']); subprocess.check_call(['true'])")
        assert (done.returncode, done.stderr) == (0, "")
        assert len(fake.trace()) == 2


class TestCAbi:
    def test_functions_answer(self, fake: Preload, tmp_path: pathlib.Path) -> None:
        code = (
            "import ctypes, torch\n"
            "k = ctypes.CDLL(None); k.koila_version.restype = ctypes.c_char_p\n"
            "for f in (k.koila_live_bytes, k.koila_peak_bytes, k.koila_allocations): f.restype = ctypes.c_int64\n"
            f"do = ctypes.CDLL({str(fake.folder / 'libkoila_torch.so')!r}).fake_glue_do\n"
            "do(b'reserve'); do(b'release')\n"
            "print(k.koila_version().decode(), k.koila_live_bytes(-1), k.koila_peak_bytes(-1), k.koila_allocations(-1), k.koila_live_bytes(99))\n"
            "print(k.koila_set_budget(-1, ctypes.c_int64(1 << 19)), k.koila_set_budget(0, ctypes.c_int64(5)), k.koila_set_budget(77, ctypes.c_int64(5)))\n"
            "do(b'reserve'); k.koila_reset_peak(-1); print(k.koila_peak_bytes(-1))\n"
            "print(k.koila_set_budget(-1, ctypes.c_int64(0)), k.koila_set_inject(b'nth:2'), k.koila_set_inject(b'nth:'))\n"
            "do(b'reserve reserve reserve')\n"
            f"print(k.koila_write_report(b'{tmp_path}/r.json'), k.koila_write_report(b'/nonexistent/r.json'), k.koila_write_report(b'r.xyz'))\n"
        )
        done = fake.python(code, KOILA_REPORT="off")
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines() == ["0.1.0 0 1048576 1 0", "0 0 1", "0", "0 0 1", "0 1 1"]
        assert fake.trace()[1:] == ["reserve 0", "reserve 1", "reserve 0", "reserve 2", "reserve 0"]
        assert json.loads((tmp_path / "r.json").read_text())["devices"]["cpu"]["live_bytes"] == 2 << 20

    def test_functions_answer_without_torch(self, real: Preload) -> None:
        code = (
            "import ctypes; k = ctypes.CDLL(None); "
            "print(k.koila_live_bytes(-1), k.koila_set_budget(-1, ctypes.c_int64(5)), k.koila_set_inject(b''), k.koila_write_report(b'r.json'))"
        )
        assert real.python(code).stdout == "0 1 1 1\n"


def test_import_torch_with_the_real_adapter(real: Preload) -> None:
    done = real.python(STEP + "print(x.grad.numpy())", KOILA_REPORT="off")
    assert (done.returncode, done.stdout, done.stderr) == (0, "[2. 2. 2.]\n", "")
