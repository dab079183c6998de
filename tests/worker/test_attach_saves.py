"""Checkpoints of a trial's script: below the trial's folder, found under the script's names, and
the user's own as they were.

Most tests run a script twice, as it is and in a trial, and compare what it sees.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

SOURCES = Path(__file__).resolve().parents[2] / "src"

BEGIN = """
import glob, inspect, io, json, os, pickle, random, shutil, subprocess, sys, tarfile
import tempfile
from pathlib import Path
see = print
if sys.argv[1] != "-":
    sys.path.insert(0, sys.argv[2])
    from nccltune.worker.attach.saves import redirect_saves
    saves = redirect_saves(Path(sys.argv[1]))
def text(path):
    with open(path) as file:
        return file.read()
def write(path, said, mode="w"):
    with open(path, mode) as file:
        file.write(said)
def tried(action, *arguments):
    try:
        return action(*arguments)
    except OSError as error:
        return type(error).__name__, error.errno
"""
END = """
if sys.argv[1] != "-":
    with open(sys.argv[3], "w") as file:
        json.dump([saves.redirected, saves.first, saves.spared], file)
"""


@dataclass(frozen=True)
class Run:
    """A script that ran in a trial, and what is told of its saves."""

    work: Path
    saves: Path
    redirected: int
    first: str | None
    spared: int
    before: dict[str, str]

    def saved(self, name: str) -> Path:
        """Where the file lies that the script saved under this name."""
        return Path(f"{self.saves}{self.work.resolve()}/{name}")

    def harmed(self) -> set[str]:
        """Files of the user's that are not as they were."""
        after = files(self.work)
        return {name for name, digest in self.before.items() if after.get(name) != digest}

    def new(self) -> set[str]:
        """Files that the trial made among the user's."""
        return set(files(self.work)) - set(self.before)


def files(folder: Path) -> dict[str, str]:
    found = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = f"-> {os.readlink(path)}"
        elif path.is_file():
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def place(work: Path, tree: dict[str, str]) -> Path:
    """A folder with these files; a name ending in / is a folder, `-> x` a link to x."""
    work.mkdir(parents=True)
    for name, content in tree.items():
        path = work / name
        (path if name.endswith("/") else path.parent).mkdir(parents=True, exist_ok=True)
        if content.startswith("-> "):
            path.symlink_to(content[3:])
        elif not name.endswith("/"):
            path.write_text(content)
    return work


class Runner:
    """Runs scripts in forks of one process: importing torch takes longer than all they do."""

    SERVER = """
        import json, os, sys, tempfile, torch, torch.distributed.checkpoint
        for line in sys.stdin:
            job = json.loads(line)
            if child := os.fork():
                print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
                continue
            os.chdir(job["work"])
            for descriptor, end in ((1, ".seen"), (2, ".errors")):
                os.dup2(os.open(job["work"] + end, os.O_CREAT | os.O_WRONLY), descriptor)
            os.environ.update(job["environment"])
            tempfile.tempdir = None
            sys.argv[1:] = job["arguments"]
            exec(job["program"], {"__name__": "__main__"})
            sys.stdout.flush()
            os._exit(0)  # torch takes seconds to leave
        """

    def __init__(self) -> None:
        self.server = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", textwrap.dedent(self.SERVER)],
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def run(self, program: str, work: Path, saves: Path | None) -> str:
        """What a script saw."""
        job = {
            "program": program,
            "work": str(work),
            "arguments": [str(saves or "-"), str(SOURCES), f"{work}.told"],
            "environment": environment(work),
        }
        assert self.server.stdin and self.server.stdout
        print(json.dumps(job), file=self.server.stdin, flush=True)
        code = self.server.stdout.readline()
        errors = Path(f"{work}.errors").read_text()
        assert (code, errors) == ("0\n", "")
        return Path(f"{work}.seen").read_text()

    def in_trial(self, script: str, folder: Path, tree: dict[str, str]) -> Run:
        """The trial's run; the script has seen the same as without a trial."""
        plain, work = place(folder / "plain", tree), place(folder / "trial", tree)
        before, saves = files(work), folder / "saves"
        program = BEGIN + textwrap.dedent(script) + END
        expected = self.run(program, plain, None)
        seen = self.run(program, work, saves)
        assert seen and seen == expected
        told = json.loads(Path(f"{work}.told").read_text())
        return Run(work, saves, *told, before)


def environment(work: Path) -> dict[str, str]:
    return {"XDG_CACHE_HOME": str(work / "cache"), "TMPDIR": "."}


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    runner = Runner()
    yield runner
    runner.server.kill()
    runner.server.communicate()


def test_torch_saves_go_below_the_folder_and_are_found(runner: Runner, tmp_path: Path) -> None:
    script = """
        import torch
        x = torch.arange(4.0)
        os.mkdir("deep")
        torch.save(x, "model.pt")
        torch.save(x + 1, Path("deep/last.ckpt"))
        torch.save(obj=x + 2, f="deep/named")  # no ending: the call says what it is
        with open("handle.pth", "wb") as file:
            torch.save(x + 3, file)
            see(file.name)
        torch.save(x + 4, "legacy.bin", _use_new_zipfile_serialization=False)
        buffer = io.BytesIO()
        torch.save(x + 5, buffer)
        see(torch.load(io.BytesIO(buffer.getvalue())))
        for name in ("model.pt", "deep/last.ckpt", "deep/named", "handle.pth", "legacy.bin"):
            see(name, torch.load(name), torch.load(Path(name)), os.path.getsize(name) > 100)
        see(torch.load("model.pt", mmap=True), torch.serialization.load("model.pt"))
        see(torch.load(os.path.join(os.getcwd(), "deep", "..", "model.pt")))
        with open("deep/named", "rb") as file:
            see(torch.load(file))
        os.chdir("deep")
        see(torch.load("../model.pt"), os.path.isfile("last.ckpt"), sorted(os.listdir("..")))
        os.chdir("..")
        os.rename("deep/named", "deep/best")
        see(os.path.exists("deep/named"), torch.load("deep/best"))
        shutil.copyfile("model.pt", "a_copy")
        see(torch.load("a_copy"), sorted(os.listdir(".")))
        os.remove("model.pt")
        see(os.path.exists("model.pt"), os.path.lexists("model.pt"))
        torch.save(x + 6, "model.pt")
        see(torch.load("model.pt"))
        torch.save(x, os.devnull)
        scripted = torch.jit.script(torch.nn.Linear(1, 1))
        scripted.save("scripted.pt")
        torch.jit.save(torch.jit.trace(lambda x: x + 1, x), "again.pt")
        see(torch.jit.load("scripted.pt").weight.shape, torch.jit.load("again.pt")(x))
        for action in (torch.load, lambda path: torch.save(x, path)):
            try:
                see(action("nowhere/x.pt"))
            except (OSError, RuntimeError) as error:
                see(type(error), "nowhere" in str(error))
        see("f" in inspect.signature(torch.save).parameters)
        see(pickle.loads(pickle.dumps(torch.save)) is torch.save)
        """
    tree = {"model.pt": "the user's", "old/last.ckpt": "the user's"}
    run = runner.in_trial(script, tmp_path, tree)
    assert run.harmed() == set() and run.new() == set()
    assert (run.work / "deep").is_dir()  # no checkpoint's name: it is made where it is
    assert run.saved("model.pt").stat().st_size > 500
    for name in ("deep/last.ckpt", "deep/best", "a_copy", "again.pt"):
        assert run.saved(name).is_file()
    assert (run.redirected, run.first) == (8, "model.pt")
    assert run.spared == 1  # the user's model.pt, which the script removed


def test_distributed_checkpoints(runner: Runner, tmp_path: Path) -> None:
    script = """
        import torch
        import torch.distributed.checkpoint as dcp
        from torch import distributed
        from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
        def load(where=None, **keywords):
            state = {"x": torch.zeros(3)}
            dcp.load(state, checkpoint_id=where, **keywords)
            return state["x"]
        distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
        x = torch.ones(3)
        writer = FileSystemWriter("unused")
        see(os.path.isdir("unused"))
        for step in (1, 2, 3):
            dcp.save({"x": x * step}, checkpoint_id=f"runs/step_{step}")
        see(load("runs/step_1"), load(Path("runs/step_3")), sorted(os.listdir("runs")))
        see(os.path.isdir("runs/step_2"), sorted(os.listdir("runs/step_2")))
        dcp.save({"x": x * 4}, storage_writer=FileSystemWriter("named"))
        see(load("named"), load(storage_reader=FileSystemReader("named")))
        dcp.save({"x": x * 5}, storage_writer=writer, checkpoint_id=Path("other"))
        dcp.async_save({"x": x * 6}, checkpoint_id="later").result()
        see(load("other"), load("later"), sorted(glob.glob("later/*")))
        class Writer(FileSystemWriter):
            def reset(self, checkpoint_id=None):
                write("told.log", str(checkpoint_id))
                super().reset(checkpoint_id)
        dcp.async_save({"x": x}, storage_writer=Writer("w"), checkpoint_id="a/b").result()
        see(load("a/b"), os.path.isdir("a"), os.path.exists("w"))
        shutil.rmtree("runs/step_1")
        os.rename("runs/step_2", "runs/best")
        shutil.copytree("runs/best", "runs/kept")
        write("runs/log.csv", "1")
        see(sorted(os.listdir("runs")), load("runs/best"), load("runs/kept"))
        write("later/note", "beside")
        see(sorted(os.listdir("later")), text("later/note"))
        """
    tree = {"named/old.distcp": "the user's", "named/.metadata": "the user's"}
    run = runner.in_trial(script, tmp_path, tree)
    assert run.harmed() == set() and run.new() == {"runs/log.csv", "told.log"}
    # The save may happen in another process, that only knows what it is told.
    assert (run.work / "told.log").read_text() == str(run.saved("a/b"))
    assert run.saved("later/.metadata").is_file() and run.saved("later/note").is_file()
    assert run.first == "runs/step_1"
    assert run.redirected == 10  # seven checkpoints, the two files of the copy, the note


@pytest.mark.skipif(importlib.util.find_spec("safetensors") is None, reason="no safetensors")
def test_safetensors_however_it_is_imported(runner: Runner, tmp_path: Path) -> None:
    script = """
        import torch
        from safetensors import safe_open
        from safetensors.torch import load_file, save_file as safe_save_file
        safe_save_file({"x": torch.arange(3.0)}, "model.safetensors", metadata={"format": "pt"})
        safe_save_file({"x": torch.ones(2)}, filename=Path("plain"))
        see(load_file("model.safetensors"), load_file("plain"))
        with safe_open("model.safetensors", framework="pt") as file:
            see(file.metadata(), file.get_tensor("x"))
        see(torch.load("model.safetensors"), sorted(os.listdir(".")))
        """
    run = runner.in_trial(script, tmp_path, {"model.safetensors": "the user's"})
    assert run.harmed() == set() and run.new() == set()
    assert run.saved("model.safetensors").is_file() and run.saved("plain").is_file()
    assert run.redirected == 2


def test_files_opened_under_the_name_of_a_checkpoint(runner: Runner, tmp_path: Path) -> None:
    script = """
        names = "a.pt b.pth c.ckpt d.safetensors e.bin f.pth.tar g.pt.tar h.pt.tmp i.pkl".split()
        for name in [*names, "model.bin.index.json"]:
            write(name, name)
        Path("path.pt").write_bytes(b"path")
        with io.open("io.pt", "w") as file:
            file.write("io")
        with open(b"bytes.pt", "w") as file:
            file.write("bytes")
        see([text(name) for name in names], Path("path.pt").read_text(), text("io.pt"))
        for name in "train.log m.csv m.json x.pt.log x.pt.lock run.pt.trace.json".split():
            write(name, name)
        write("old.ckpt", "+", "a")
        write("new.ckpt", "+", "a")
        with open("read.ckpt", "r+") as file:
            file.write("X")
        os.truncate("cut.ckpt", 3)
        see([text(f"{name}.ckpt") for name in ("old", "new", "read", "cut", "untouched")])
        see(tried(open, "untouched.ckpt", "x"), tried(open, "none.ckpt", "r+"))
        see(tried(open, "a.pt", "x"), tried(open, "no/x.ckpt", "w"), tried(open, "none.ckpt"))
        descriptor = os.open("low.pt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.write(descriptor, b"low")
        os.close(descriptor)
        Path("touched.pt").touch()
        see(text("low.pt"), text("touched.pt"), os.access("low.pt", os.R_OK))
        os.makedirs("cache/hub")
        write("cache/hub/pretrained.pth", "downloaded")
        with tempfile.NamedTemporaryFile("w", suffix=".pt") as file:
            print("temporary", file=file, flush=True)
            see(text(file.name))
        descriptor, name = tempfile.mkstemp(suffix=".pt")
        os.close(descriptor)
        write(name, "written by its name")
        see(text(name), subprocess.check_output(["cat", name]))
        os.remove(name)
        with tempfile.TemporaryDirectory() as folder:
            write(f"{folder}/x.pt", "x")
            os.system(f"touch {folder}/by_another_program.pt")
            see(sorted(os.listdir(folder)))
        shutil.rmtree("cache/old")
        with tarfile.open("bundle.pt.tar", "w") as bundle:
            bundle.add("a.pt")
        with tarfile.open("bundle.pt.tar") as bundle:
            see(bundle.getnames())
        see(sorted(os.listdir(".")))
        see("file" in inspect.signature(open).parameters, open.__name__, os.rename.__name__)
        see(pickle.dumps([open, os.remove, shutil.rmtree]) is not None)
        """
    tree = {
        "old.ckpt": "old",
        "read.ckpt": "read",
        "cut.ckpt": "a long one",
        "untouched.ckpt": "here",
        "low.pt": "the user's",
        "cache/old/x.bin": "a download",
    }
    run = runner.in_trial(script, tmp_path, tree)
    logs = {"train.log", "m.csv", "m.json", "x.pt.log", "x.pt.lock", "run.pt.trace.json"}
    assert run.harmed() == {"cache/old/x.bin"}  # no one's work
    assert run.new() == {*logs, "cache/hub/pretrained.pth"}
    assert run.saved("h.pt.tmp").read_text() == "h.pt.tmp"
    assert run.saved("old.ckpt").read_text() == "old+"
    assert not run.saved("untouched.ckpt").exists()  # it was only read


def test_what_was_saved_is_renamed_copied_linked_and_deleted(
    runner: Runner, tmp_path: Path
) -> None:
    script = """
        for name in ("a.pt", "b.pt", "c.pt", "d.pt"):
            write(name, name)
        os.rename("a.pt", "renamed")
        os.replace("b.pt", "theirs.pt")
        shutil.move("c.pt", "folder")
        shutil.copy("d.pt", "folder/copied")
        shutil.copy2("folder/copied", "copied2.pt")
        os.link("copied2.pt", "linked.pt")
        os.symlink("d.pt", "latest.pt")
        os.symlink(os.path.abspath("d.pt"), "folder/absolute")
        os.chmod("d.pt", 0o600)
        os.utime("d.pt", (1, 2))
        see([text(n) for n in "renamed theirs.pt folder/c.pt folder/copied latest.pt".split()])
        see(oct(os.stat("d.pt").st_mode), os.stat("latest.pt").st_mtime, os.statvfs("d.pt").f_flag)
        see(tried(os.setxattr, "d.pt", "user.x", b"1"), tried(os.getxattr, "d.pt", "user.none"))
        see(tried(os.chown, "d.pt", -1, -1), tried(os.lchown, "latest.pt", -1, -1))
        see(os.readlink("latest.pt"), os.path.relpath(os.path.realpath("folder/absolute")))
        see(os.path.relpath(os.readlink("folder/absolute")))
        see(os.path.islink("latest.pt"), os.path.islink("d.pt"), os.path.islink("linked.pt"))
        write("latest.pt", "through the link")
        write("tmp123", "made under another name")
        os.replace("tmp123", "final.pt")
        see(text("d.pt"), os.path.exists("tmp123"), text("final.pt"))
        for name in ("renamed", "linked.pt", "latest.pt", "folder/c.pt"):
            os.unlink(name)
        Path("d.pt").unlink()
        see(sorted(glob.glob("**", recursive=True)), sorted(p.name for p in Path().iterdir()))
        for action in (os.remove, os.stat, os.readlink, os.rmdir, os.listdir, shutil.rmtree):
            see(tried(action, "d.pt"))
        os.makedirs("checkpoint-1/deep")
        write("checkpoint-1/deep/state.json", "{}")
        see(tried(os.rmdir, "checkpoint-1"), tried(os.mkdir, "checkpoint-1/deep"))
        begun = os.getcwd()
        os.chdir("checkpoint-1")
        see(os.listdir("."), text("deep/state.json"))
        os.chdir(begun)
        os.rename("checkpoint-1", "checkpoint-2")
        shutil.copytree("checkpoint-2", "elsewhere")
        shutil.rmtree("checkpoint-2")
        see([text(n) for n in glob.glob("elsewhere/*/*")], os.path.exists("checkpoint-2"))
        with os.scandir("elsewhere") as entries:
            see([(entry.name, entry.path, entry.is_dir(), entry.is_file()) for entry in entries])
        if os.fork() == 0:
            write("by_child.pt", text("final.pt"))
            os._exit(0)
        os.wait()
        see(text("by_child.pt"))
        """
    run = runner.in_trial(script, tmp_path, {"theirs.pt": "the user's", "folder/keep": ""})
    assert run.harmed() == set()
    assert run.new() == set()  # what was made under another name was moved away, too
    assert run.saved("theirs.pt").read_text() == "b.pt"
    assert run.saved("final.pt").read_text() == "made under another name"
    assert run.saved("elsewhere/deep/state.json").is_file()
    assert not (run.work / "elsewhere").exists()


def test_the_trials_folder_may_lie_on_another_file_system(runner: Runner, tmp_path: Path) -> None:
    script = """
        if sys.argv[1] != "-":
            from nccltune.worker.attach.paths import REAL
            def across(source, target):
                raise OSError(18, "Invalid cross-device link")
            REAL.replace = across
        write("tmp123", "complete")
        os.chmod("tmp123", 0o640)
        os.replace("tmp123", "model.pt")
        os.makedirs("begun/deep")
        write("begun/deep/state", "1")
        os.symlink("deep/state", "begun/link")
        os.rename("begun", "checkpoint-1")
        see(text("model.pt"), oct(os.stat("model.pt").st_mode), text("checkpoint-1/deep/state"))
        see(os.readlink("checkpoint-1/link"), sorted(os.listdir(".")))
        """
    run = runner.in_trial(script, tmp_path, {"model.pt": "the user's"})
    assert run.harmed() == set() and os.listdir(run.work) == ["model.pt"]
    assert run.saved("checkpoint-1/deep/state").read_text() == "1"


def test_the_users_checkpoints_survive_rotation_and_clean_starts(
    runner: Runner, tmp_path: Path
) -> None:
    script = """
        # As Trainer does it with save_total_limit: the oldest folders by time.
        for step in (1, 2):
            os.makedirs(f"out/checkpoint-{step}", exist_ok=True)
            for name in ("model.safetensors", "trainer_state.json"):
                write(f"out/checkpoint-{step}/{name}", f"step {step}")
            os.utime(f"out/checkpoint-{step}", (4e9 + step, 4e9 + step))
            for folder in sorted(glob.glob("out/checkpoint-*"), key=os.path.getmtime)[:-1]:
                shutil.rmtree(folder)
            see(sorted(os.listdir("out")), text(f"out/checkpoint-{step}/trainer_state.json"))
        see(os.path.exists("out/checkpoint-500"), glob.glob("out/checkpoint-500/*"))

        for folder in ("runs", "weights", "empty"):  # a run that begins with a clean folder
            shutil.rmtree(folder)
            see(os.path.exists(f"{folder}/old.pt"), os.path.exists(folder))
            see(tried(open, f"{folder}/old.pt", "w"))
            os.makedirs(folder)
            see(os.listdir(folder), tried(os.mkdir, folder))
        write("runs/new.pt", "new")
        write("runs/log.csv", "log")
        see(sorted(os.listdir("runs")), text("runs/new.pt"), text("runs/log.csv"))

        os.remove("last.pt")
        see(os.path.exists("last.pt"), os.path.exists("best.pt"), tried(os.remove, "last.pt"))
        os.rename("best.pt", "best.old.pt")
        see(text("best.old.pt"), os.path.exists("best.pt"))
        write("best.pt", "better")
        write("best.old.pt", "+", "a")
        shutil.move("moved", "moved_away")
        see(text("moved_away/x.ckpt"), os.path.exists("moved"), text("best.old.pt"))
        os.remove("latest")
        os.symlink("out/checkpoint-2", "latest")
        see(text("latest/model.safetensors"), os.path.relpath(os.path.realpath("latest")))
        os.chmod("kept.pt", 0o700)
        write("hf/config.json", "{}")
        write("hf/metrics.csv", "1")
        write("hf/tokenizer.tmp", "new")
        os.replace("hf/tokenizer.tmp", "hf/tokenizer.json")
        see(text("hf/config.json"), text("hf/metrics.csv"), text("hf/tokenizer.json"))
        os.removedirs("vain/checkpoint-9")
        see(os.path.exists("vain"))
        """
    tree = {
        "out/checkpoint-500/model.safetensors": "500",
        "out/checkpoint-500/trainer_state.json": "500",
        "out/checkpoint-1/trainer_state.json": "of an earlier run",
        "runs/old.pt": "old",
        "runs/log.csv": "old log",
        "weights/a/b/old.bin": "old",
        "empty/note": "no checkpoint",
        "last.pt": "last",
        "best.pt": "best",
        "kept.pt": "kept",
        "moved/x.ckpt": "x",
        "latest": "-> out/checkpoint-500",
        "hf/config.json": "the user's",
        "hf/tokenizer.json": "the user's",
        "hf/model.safetensors": "weights",
        "vain/checkpoint-9/": "",
    }
    run = runner.in_trial(script, tmp_path, tree)
    assert run.harmed() == set()
    assert run.new() == {"hf/metrics.csv"}
    assert (run.work / "vain" / "checkpoint-9").is_dir()
    assert oct((run.work / "kept.pt").stat().st_mode)[-3:] != "700"
    spared = (
        "checkpoint-500 checkpoint-1 runs weights empty last.pt best.pt moved latest "
        "checkpoint-9 vain"
    )
    assert run.spared == len(spared.split())


def test_ranks_share_what_is_saved_and_what_is_deleted(runner: Runner, tmp_path: Path) -> None:
    names = "deleted.pt gone/old.pt mine.pt metrics.json deleted.json"
    tree = dict.fromkeys(names.split(), "the user's")
    work, saves = place(tmp_path / "work", tree), tmp_path / "saves"
    rank0 = """
        import torch, torch.distributed.checkpoint as dcp
        os.remove("deleted.pt")
        shutil.rmtree("gone")
        torch.save(torch.ones(1), "model.pt")
        torch.save(torch.ones(2), "no_ending")
        dcp.save({"x": torch.ones(3)}, checkpoint_id="step")
        os.makedirs("checkpoint-7")
        write("checkpoint-7/state.json", "7")
        os.remove("deleted.json")
        write("metrics.json", "new")
        for name in ("made", "made2", "barrier"):
            write(name, "")
        see("saved")
        """
    rank1 = """
        import time, torch, torch.distributed.checkpoint as dcp
        see(os.path.exists("deleted.pt"))
        while not os.path.exists("barrier"):
            time.sleep(0.01)
        see(os.path.exists("deleted.pt"), os.path.exists("gone/old.pt"), os.path.exists("mine.pt"))
        see(torch.load("model.pt"), torch.load("no_ending"), text("checkpoint-7/state.json"))
        os.remove("made")
        write("made2", "written to by the other rank")
        write("metrics.json", "+", "a")
        see(text("metrics.json"), os.path.exists("deleted.json"), os.path.exists("made"))
        state = {"x": torch.zeros(3)}
        dcp.load(state, checkpoint_id="step")
        see(state, sorted(os.listdir("step")))
        see(sorted(os.listdir(".")), os.path.getsize("model.pt") > 100)
        """
    # Each imports torch in the trial, as real ranks do.
    leave = "sys.stdout.flush(); os._exit(0)"
    ranks = [
        subprocess.Popen(
            [
                sys.executable,
                "-c",
                BEGIN + textwrap.dedent(script) + leave,
                str(saves),
                str(SOURCES),
            ],
            cwd=work,
            env=os.environ | environment(work),
            text=True,
            stdout=subprocess.PIPE,
        )
        for script in (rank0, rank1)
    ]
    seen = [rank.communicate(timeout=240)[0] for rank in ranks][1].splitlines()
    assert seen[1:] == [
        "False False True",
        "tensor([1.]) tensor([1., 1.]) 7",
        "new+ False False",
        "{'x': tensor([1., 1., 1.])} ['.metadata', '__0_0.distcp']",
        "['barrier', 'checkpoint-7', 'made2', 'metrics.json', 'mine.pt', 'model.pt', 'no_ending', "
        "'step'] True",
    ]
    # What one rank has made for real, another may write to and delete.
    assert (work / "made2").read_text() == "written to by the other rank"
    assert sorted(files(work)) == sorted([*tree, "barrier", "made2"])
    assert (work / "metrics.json").read_text() == "the user's"
    # A trial after it, with a folder of its own, sees the user's files and none of another trial's.
    other = BEGIN + "see(sorted(os.listdir('.')), text('gone/old.pt'))"
    assert (
        runner.run(other, work, tmp_path / "2")
        == "['barrier', 'deleted.json', 'deleted.pt', 'gone', 'made2', 'metrics.json', "
        "'mine.pt'] the user's\n"
    )


def test_what_was_there_before_stays_whatever_its_name(runner: Runner, tmp_path: Path) -> None:
    names = """w.npz w.npy w.h5 w.keras w.msgpack w.joblib w.tar w.zip w.pk w.p w.dill w.weights
        w.params w.state w.dat w.torch w.tch w.ckp w.chkpt w.checkpoint W.PT W.Pth metrics.json
        log.csv checkpoints/w.dat ckpt/w.dat checkpoint-best/w.dat checkpoint_last/optimizer
        code.py""".split()
    script = f"""
        import numpy, torch
        names = {names!r}
        for name in names:
            write(name, "of the trial")
            see(name, text(name), sorted(os.listdir(os.path.dirname(name) or ".")))
        for name in ("model_last", "model.tar", "checkpoint"):
            with open(name, "wb") as file:
                torch.save(torch.ones(2), file)
            see(torch.load(name), os.path.getsize(name) > 100)
        numpy.savez("arrays.npz", x=numpy.ones(1))
        see(numpy.load("arrays.npz")["x"])
        write("appended.csv", "+", "a")
        with open("updated", "r+") as file:
            file.write("T")
        os.truncate("cut", 1)
        write("link", "through the link")
        write("copied", "of the trial")
        shutil.copy("copied", "target")
        see([text(name) for name in ("appended.csv", "updated", "cut", "link", "target")])
        if os.fork() == 0:
            write("by_child", "of the child")
            os._exit(0)
        os.wait()
        see(text("by_child"))
        write("new", "1")
        write("new", "2", "a")
        see(text("new"), tried(open, "new", "x"), tried(open, "w.npz", "x"))
        """
    others = "model_last model.tar checkpoint arrays.npz appended.csv updated cut target by_child"
    tree = {name: f"the user's {name}" for name in [*names, *others.split(), "real.npz"]}
    run = runner.in_trial(script, tmp_path, tree | {"link": "-> real.npz"})
    assert run.harmed() == set()
    assert run.new() == {"new", "copied"}  # what a script makes anew is where it puts it
    for name in names:
        assert run.saved(name).read_text() == "of the trial"
    assert run.saved("appended.csv").read_text() == "the user's appended.csv+"
    assert run.saved("by_child").read_text() == "of the child"
    assert run.redirected == len(names) + 9  # what a child writes is not counted here


def test_nothing_after_a_trial_says_that_its_checkpoint_is_the_newest(
    runner: Runner, tmp_path: Path
) -> None:
    script = """
        import torch
        pointers = {
            "ds/latest": "ds/global_step5", "ds/last_checkpoint": "ds/global_step5",
            "meg/latest_checkpointed_iteration.txt": "5", "first/latest": "first/global_step5",
        }
        for folder in ("ds", "first"):
            os.makedirs(f"{folder}/global_step5", exist_ok=True)
            torch.save(torch.ones(1), f"{folder}/global_step5/states.pt")
        for name, said in pointers.items():
            write(name, said)
            see(name, text(name), os.path.exists(name))
        write("first/tmp", "6")
        os.replace("first/tmp", "first/checkpoint")
        see(torch.load(text("first/latest") + "/states.pt"), sorted(os.listdir("first")))
        os.symlink("run2", "latest.tmp")
        os.replace("latest.tmp", "latest")
        see(os.readlink("latest"), os.path.exists("latest/w.npz"))
        """
    tree = {
        "ds/latest": "global_step4",
        "ds/last_checkpoint": "global_step4",
        "ds/global_step4/states.pt": "the user's",
        "meg/latest_checkpointed_iteration.txt": "4",
        "run1/w.npz": "the user's",
        "latest": "-> run1",
        "first/": "",
    }
    run = runner.in_trial(script, tmp_path, tree)
    assert run.harmed() == set() and run.new() == set()
    assert run.saved("first/latest").read_text() == "first/global_step5"
    assert run.saved("ds/latest").read_text() == "ds/global_step5"


def test_folders_and_files_of_any_name_are_hidden_and_not_deleted(
    runner: Runner, tmp_path: Path
) -> None:
    script = """
        write("run/made", "by the trial, before it cleans up")
        os.makedirs("run/logs/new")
        shutil.rmtree("run")
        see(os.path.exists("run"), tried(os.stat, "run/last/model_state"), tried(os.rmdir, "run"))
        os.makedirs("run/last")
        write("run/last/model_state", "new")
        see(sorted(glob.glob("run/**", recursive=True)), text("run/last/model_state"))
        write("exp/made", "by the trial, before it renames")
        os.rename("exp", "exp_old")
        see(sorted(glob.glob("exp*/**", recursive=True)), text("exp_old/weights/w.npz"))
        see(text("exp_old/made"))
        os.unlink("db.sqlite")
        os.rename("log.csv", "log.1.csv")
        write("log.csv", "new")
        see(os.path.exists("db.sqlite"), text("log.1.csv"), text("log.csv"))
        write("part", "whole")
        os.replace("part", "final_model")
        os.link("w.npz", "backup")
        write("backup", "not through the hard link")
        os.symlink("v.npz", "best")
        write("best", "not through the symbolic link")
        see(text("final_model"), text("backup"), text("best"))
        os.rmdir("empty")
        os.mkdir("mine")
        write("mine/x", "x")
        os.rename("mine", "mine2")
        see(os.listdir("mine2"), os.path.exists("empty"), tried(os.rmdir, "mine2"))
        shutil.rmtree("mine2")
        see(sorted(os.listdir(".")))
        """
    names = "run/last/model_state run/logs/a.txt exp/weights/w.npz db.sqlite log.csv w.npz v.npz"
    tree = {name: f"the user's {name}" for name in [*names.split(), "final_model"]}
    run = runner.in_trial(script, tmp_path, tree | {"empty/": ""})
    assert run.harmed() == set() and (run.work / "empty").is_dir()
    assert run.new() == {"best"}  # a link
    assert not (run.work / "run" / "logs" / "new").exists()
    assert not (run.work / "mine2").exists()


def test_other_ways_to_a_file(runner: Runner, tmp_path: Path) -> None:
    script = """
        import torch
        from torch.package import PackageExporter, PackageImporter
        with io.FileIO("raw.pt", "w") as file:
            file.write(b"raw")
            see(isinstance(file, io.FileIO), type(file).__name__)
        with io.FileIO("raw", mode="r+") as file:
            file.write(b"T")
        with open("raw.pt", "rb", buffering=0) as file:
            see(isinstance(file, io.FileIO), file.read(), issubclass(type(file), io.FileIO))
        class Counted(io.FileIO):
            pass
        see(isinstance(file, Counted), Counted("raw").read(), issubclass(Counted, io.FileIO))
        with PackageExporter("package.pt") as exporter:
            exporter.save_text("a", "b", "said")
        see(PackageImporter("package.pt").load_text("a", "b"))
        torch.UntypedStorage.from_file("mapped.dat", shared=True, nbytes=8)[0] = 1
        torch.from_file("mapped2.bin", shared=True, size=2, dtype=torch.uint8)[0] = 2
        see(torch.from_file("mapped.dat", size=4, dtype=torch.uint8), text("mapped2.bin"))
        see(torch.UntypedStorage.from_file("mapped2.bin", shared=False, nbytes=2)[0])
        folder = os.open("folder", os.O_RDONLY)
        for name, flags in (("m.ckpt", os.O_TRUNC), ("w.npz", os.O_TRUNC), ("kept", 0)):
            descriptor = os.open(name, os.O_WRONLY | flags, dir_fd=folder)
            os.write(descriptor, b"T")
            os.close(descriptor)
            see(text(f"folder/{name}"), os.stat(name, dir_fd=folder).st_size)
        os.unlink("gone.pt", dir_fd=folder)
        os.unlink("gone", dir_fd=folder)
        os.rename("w.npz", "w2.npz", src_dir_fd=folder, dst_dir_fd=folder)
        os.mkdir("made", dir_fd=folder)
        see(sorted(os.listdir("folder")), text("folder/w2.npz"))
        os.rmdir("made", dir_fd=folder)
        see(os.path.exists("folder/made"))
        """
    names = """raw.pt raw package.pt mapped.dat mapped2.bin folder/m.ckpt folder/w.npz folder/kept
        folder/gone.pt folder/gone""".split()
    run = runner.in_trial(script, tmp_path, {name: f"the user's {name}" for name in names})
    assert run.harmed() == set() and run.new() == set()
    assert run.saved("mapped.dat").read_bytes() == b"\1he user's mapped.dat"
    assert run.saved("folder/kept").read_text() == "The user's folder/kept"


def test_caches_locks_and_large_files_are_written_where_they_are(
    runner: Runner, tmp_path: Path
) -> None:
    script = """
        if sys.argv[1] != "-":
            from nccltune.worker.attach import overlay
            overlay.MOST_COPIED = 20
        write("cache/index.json", "new")
        os.remove("cache/old")
        for name in ("data.lock", "folder/.lock"):
            before = os.stat(name).st_ino
            os.close(os.open(name, os.O_RDWR | os.O_CREAT | os.O_TRUNC))
            see(os.stat(name).st_ino == before)
        os.mkfifo("pipe")
        os.remove("pipe")
        write(os.devnull, "x")
        write("large", "+", "a")
        with open("mapped", "r+") as file:
            file.write("T")
        write("emptied", "")
        see(text("large"), text("mapped"), text("emptied"), text("cache/index.json"))
        """
    names = "cache/index.json cache/old data.lock folder/.lock large mapped emptied"
    tree = {name: f"the user's {name}, which is long" for name in names.split()}
    run = runner.in_trial(script, tmp_path, tree)
    assert run.harmed() == set(tree) - {"emptied"}
    assert (run.work / "large").read_text().endswith("long+")


def test_folders_made_for_checkpoints_alone_are_gone_at_the_end(tmp_path: Path) -> None:
    script = """
        for name in ("runs/iter_5", "logs", "theirs/iter_5"):
            os.makedirs(name)
        write("runs/iter_5/x.pt", "x")
        write("theirs/iter_5/x.pt", "x")
        write("logs/log.csv", "1")
        os.makedirs("empty")
        if os.fork() == 0:
            sys.exit()  # which ends no trial
        os.wait()
        see(sorted(os.listdir("runs/iter_5")), os.path.isdir("runs/iter_5"))
        """
    work = place(tmp_path / "work", {"theirs/": ""})
    ran = subprocess.run(
        [sys.executable, "-c", BEGIN + textwrap.dedent(script), str(tmp_path / "s"), str(SOURCES)],
        cwd=work,
        env=os.environ | environment(work),
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert (ran.stdout, ran.stderr) == ("['x.pt'] True\n", "")
    left = sorted(str(path.relative_to(work)) for path in work.rglob("*"))
    assert left == ["empty", "logs", "logs/log.csv", "theirs"]


OPERATIONS = """
    FILES = '''model.pt old.pt last.ckpt log.csv tmp123 model.pt.tmp plain/notes.txt plain/x.bin
        bare out/config.json out/model.safetensors out/bare out/checkpoint-1/weights.bin saves/a.pt
        out/checkpoint-1/state.json out/checkpoint-2/weights.bin out/checkpoint-2/state.json
        latest/weights.bin saves/b.pt'''.split()
    FOLDERS = '''out out/checkpoint-1 out/checkpoint-2 out/checkpoint-3 plain saves out/sub new.ckpt
        saves/deep'''.split()
    KINDS = '''write append exclusive update read remove rename replace rename_folder mkdir makedirs
        rmdir rmtree copy copy2 copytree move symlink listdir exists size touch truncate realpath
        safely'''.split()

    def operate(kind, rng):
        file, file2 = rng.choice(FILES), rng.choice(FILES)
        folder, folder2 = rng.choice(FOLDERS), rng.choice(FOLDERS)
        any1, any2 = rng.choice(FILES + FOLDERS), rng.choice(FILES + FOLDERS)
        said, link = str(rng.randrange(1000)), rng.choice(["model.pt", "saves/a.pt", "out/sub"])
        def safely():
            write("tmp123", said)
            os.replace("tmp123", file)
        actions = dict(
            write=lambda: write(file, said), append=lambda: write(file, said, "a"),
            exclusive=lambda: write(file, said, "x"), update=lambda: write(file, said, "r+"),
            read=lambda: text(file), remove=lambda: os.remove(file),
            rename=lambda: os.rename(file, file2), replace=lambda: Path(file).replace(file2) and 0,
            rename_folder=lambda: os.rename(folder, folder2), mkdir=lambda: os.mkdir(folder),
            makedirs=lambda: os.makedirs(folder, exist_ok=True), rmdir=lambda: os.rmdir(folder),
            rmtree=lambda: shutil.rmtree(folder), copy=lambda: shutil.copy(file, any1),
            copy2=lambda: shutil.copy2(file, file2), move=lambda: shutil.move(any1, any2),
            copytree=lambda: folder2.startswith(folder) or shutil.copytree(folder, folder2),
            symlink=lambda: os.symlink(os.path.relpath(link, os.path.dirname(file)), file),
            listdir=lambda: sorted(os.listdir(folder)), touch=lambda: Path(file).touch(),
            exists=lambda: (os.path.isfile(any1), os.path.isdir(any1), os.access(any1, os.R_OK)),
            size=lambda: os.path.getsize(file), truncate=lambda: os.truncate(file, 2),
            realpath=lambda: os.path.relpath(os.path.realpath(any1)), safely=safely)
        return actions[kind]()

    def tree():
        found = {}
        for folder, folders, files in os.walk("."):
            for name in set(files) - {"latest"}:
                path = os.path.join(folder, name)
                found[path] = text(path) if os.path.isfile(path) else None
            found |= {os.path.join(folder, name): "" for name in folders if name != "latest"}
        return sorted(found.items())

    begun = os.getcwd()
    for sequence in sorted(os.listdir(begun)):
        if os.fork():  # each in a process of its own, as trials are
            os.wait()
            continue
        os.chdir(sequence)
        if sys.argv[1] != "-":
            sys.path.insert(0, sys.argv[2])
            from nccltune.worker.attach.saves import redirect_saves
            redirect_saves(Path(sys.argv[1]) / sequence)
        rng = random.Random(int(sequence))
        for kind in rng.choices(KINDS, k=14):
            try:
                outcome = operate(kind, rng)
            except shutil.Error:
                outcome = "cannot"
            except OSError as error:
                outcome = {20: 2}.get(error.errno, error.errno)
            see(sequence, kind, outcome, tree())
        sys.stdout.flush()
        os._exit(0)
    """


def test_sequences_at_random_are_seen_alike_and_do_no_harm(tmp_path: Path) -> None:
    user = """model.pt old.pt log.csv plain/notes.txt out/config.json out/model.safetensors bare
        saves/a.pt out/checkpoint-1/weights.bin out/checkpoint-1/state.json out/bare""".split()
    tree = {name: f"user's {name}" for name in user} | {"latest": "-> out/checkpoint-1"}
    plain, trial = tmp_path / "plain", tmp_path / "trial"
    for number in range(1, 41):
        for work in (plain, trial):
            place(work / str(number), tree)
    before = files(trial)
    program = BEGIN.split("if sys.argv")[0] + "def text" + BEGIN.partition("def text")[2]
    program += textwrap.dedent(OPERATIONS)
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", program, saves, str(SOURCES)],
            cwd=work,
            text=True,
            stdout=subprocess.PIPE,
        )
        for work, saves in ((plain, "-"), (trial, str(tmp_path / "saves")))
    ]
    seen = [run.communicate(timeout=240)[0].splitlines() for run in runs]
    assert len(seen[0]) == 40 * 14
    for expected, found in zip(*seen, strict=True):
        assert found == expected
    after = files(trial)
    assert {name for name in before if after.get(name) != before[name]} == set()
