"""`learner doctor --deep` verifies the outputs that are present."""

import hashlib
import re

MODEL = "artifacts/model.mpk.gz"
LOG = "artifacts/train/epoch-1/Loss.log"


def examine(project, *options, **environment):
    """Run `learner doctor --deep`, and return its outcome and the messages about outputs."""
    done = project.call("doctor", "--deep", "--timeout", "0.01", *options, **environment)
    return done, re.findall(r"^(\w+) +outputs +(.*)$", done.out, re.MULTILINE)


def object_of(project, name):
    """Return the path of the content of the output *name* in the cache."""
    md5 = hashlib.md5((project.folder / name).read_bytes()).hexdigest()  # noqa: S324  of DVC
    return project.folder / ".dvc/cache/files/md5" / md5[:2] / md5[2:]


def test_intact_files_and_records_are_counted(finished):
    done, [(level, message)] = examine(finished)

    assert (done.code, level) == (0, "ok"), done.text
    assert re.fullmatch(r"verified: \d\d files, \d+ records and checkpoints", message)


def test_each_output_that_was_edited_is_a_problem_and_stays(finished):
    for name in (MODEL, LOG):
        (finished.folder / name).unlink()  # a link to the cache
        (finished.folder / name).write_bytes(b"edited")

    done, lines = examine(finished, "--fix")

    assert done.code == 1
    assert [(level, message.partition(": ")[0]) for level, message in lines] == [
        ("problem", f"{LOG} differs from dvc.lock"),
        ("problem", f"{MODEL} differs from dvc.lock"),
    ]
    assert (finished.folder / MODEL).read_bytes() == b"edited"
    finished.dvc("checkout", "--force", MODEL, LOG).ok()
    assert examine(finished)[0].code == 0


def test_damaged_file_that_dvc_has_checked_out_is_removed_and_restored(finished, tmp_path):
    """The state of DVC, which all commands share, knows that DVC and not the user has written the file."""
    state = {"DVC_SITE_CACHE_DIR": str(tmp_path / "state")}
    stored, intact = object_of(finished, MODEL), (finished.folder / MODEL).read_bytes()
    stored.chmod(0o644)
    stored.write_bytes(intact[:-1] + b"x")
    stored.chmod(0o444)
    (finished.folder / MODEL).unlink(missing_ok=True)
    finished.dvc("checkout", **state)
    assert (finished.folder / MODEL).read_bytes() not in (intact, b"")

    done, lines = examine(finished, **state)
    assert (done.code, len(lines)) == (1, 1), done.text
    assert "`learner doctor --deep --fix` does it" in done.out
    examine(finished, "--fix", **state)
    assert not (finished.folder / MODEL).exists()
    stored.write_bytes(intact)

    finished.dvc("checkout", **state).ok()
    assert (finished.folder / MODEL).read_bytes() == intact


def test_recorded_files_that_the_cache_lacks_are_a_warning(finished):
    object_of(finished, MODEL).unlink()

    done, [(level, message), _] = examine(finished)

    assert (done.code, level) == (0, "warning"), done.text
    assert re.fullmatch(rf"DVC's cache lacks \d recorded files: .*{MODEL}", message)


def test_outputs_that_git_has_are_not_verified(finished):
    metrics = "      - ${paths.metrics}"
    finished.edit("dvc.yaml", f"{metrics}\n", f"{metrics}:\n          cache: false\n")
    finished.dvc("commit", "-f", "fit").ok()
    finished.edit("artifacts/metrics.json", "{", "{ ")

    assert examine(finished)[0].code == 0


def test_record_that_was_recorded_damaged_is_a_problem(finished):
    path = finished.folder / "artifacts/checkpoint/model-1.mpk.gz"
    content = path.read_bytes()
    path.unlink()
    path.write_bytes(content[:-20])
    finished.dvc("commit", "-f", "fit").ok()

    done, lines = examine(finished)

    assert done.code == 1
    problems = [message for level, message in lines if level == "problem"]
    assert problems
    assert all("artifacts/checkpoint/model-1.mpk.gz" in message for message in problems)
