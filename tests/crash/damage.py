"""Damage to a file of the run store, the cache or the workspace: reported or repaired, never recorded."""

import hashlib
import random
import shutil
from dataclasses import dataclass
from pathlib import Path

from checkouts import leftovers, without_cache, wrong_cache
from file_damage import CONFLICT, counterpart, damage, kinds_of
from recovery import RECOVERED, Recovery, recover_by_remedy, remove_within
from report import Row
from stores import kind_of_file
from trial_projects import COMMANDS, difference, set_seed, templates
from workers import run_trials

from pipeline.project.yaml_files import read_yaml

PLACES = ("store", "cache", "workspace", "cache")
CACHED = (".dvc/cache/files", ".dvc/cache/runs")
WORKSPACE = ("artifacts", "data", "dvc.lock", "params.yaml", ".dvc/tmp/rwlock", ".runs/dvc.lock")
SITUATIONS = {  # why the command reads the damaged file
    "store": ("unpublished store",),
    "cache": ("outputs deleted", "an old dvc.lock, and no outputs", "another run recorded"),
    "workspace": ("unchanged",),
}
MUST_REFUSE = ("params.yaml", CONFLICT)


@dataclass(frozen=True)
class Case:
    """The damage before the command."""

    place: str
    situation: str
    name: str
    """The damaged file."""
    kind: str


class Damages:
    """Finished projects, of which each trial damages a copy."""

    def __init__(self, folder, seed):
        self.folder = folder
        self.seed = seed
        self.templates = templates(folder.parent)
        self.done, self.other = self.templates.done, self.templates.other
        self.returned = self.other.copied_to(folder / "returned")
        set_seed(self.returned, 43, 42)

    def trial(self, index):
        """Damage a file, run a command, and return the row of the trial."""
        draw = random.Random(f"{self.seed} {index}")  # noqa: S311  not a secret
        place = PLACES[index % len(PLACES)]
        situation = draw.choice(SITUATIONS[place])
        command = draw.choice(("dvc repro", "learner run"))
        if place == "cache":  # plain DVC restores a damaged object before our code runs
            command = "learner run"
        project = self._build_project(situation, self.folder / str(index))
        case = self._damage_file(project, place, situation, draw)
        before = read_stages(project.folder / "dvc.lock")
        code = project.finish(*COMMANDS[command])
        wrong, recovery = self._after_it(project, COMMANDS[command], case, code, before)
        if wrong:
            wrong = f"trial {index}, {command} after {case}: {wrong}"
        else:
            project.remove()
        return Row(f"{place}: {case.kind} {_family(case.name)}", wrong, recovery.counted)

    def _build_project(self, situation, folder):
        """Return a project in which the next command must read the file that will be damaged."""
        if situation == "unpublished store":
            project = self.templates.start("training", folder)
            shutil.copytree(self.done.folder / ".runs", folder / ".runs", dirs_exist_ok=True)
            return project
        project = (self.returned if situation == "another run recorded" else self.done).copied_to(folder)
        if situation == "unchanged":
            return project
        if situation == "an old dvc.lock, and no outputs":
            project.ok("git", "checkout", "dvc.lock")
        same = ("learner", "config.json", "layout.json") if situation == "another run recorded" else ("",)
        for name in ("data", *(f"artifacts/{each}" for each in same)):  # so that DVC restores every object
            remove_within(folder, name)
        shutil.rmtree(folder / ".runs")  # from which fit would publish the outputs
        return project

    def _damage_file(self, project, place, situation, draw):
        folder = project.folder
        own = [path for path in self.done.store().rglob("*") if path.is_file()] if place == "store" else []
        found = [str(path.relative_to(self.done.folder)) for path in own]
        found = found or [*self.done.project.files(*(CACHED if place == "cache" else WORKSPACE))]
        family = draw.choice(sorted({_family(name) for name in found}))
        name = draw.choice(
            sorted(name for name in found if _family(name) == family and (folder / name).exists())
        )
        path = folder / name
        kind = draw.choice(kinds_of(path))
        kind = damage(path, kind, draw, self._other(project, path, name, draw))
        return Case(place, situation, name, kind)

    def _other(self, project, path, name, draw):
        """Return another valid file of the same kind as *path*."""
        if name.startswith(CACHED):
            same = sorted(project.folder.joinpath(*Path(name).parts[:3]).rglob(f"*{path.suffix}"))
            files = [each for each in same if each.is_file() and each.suffix == path.suffix and each != path]
            return draw.choice(files)
        if name.startswith(".runs/") and len(Path(name).parts) > 2:
            stores = [
                each for each in (self.other.folder / ".runs").glob("*/") if each.name != Path(name).parts[1]
            ]
            return counterpart(path, stores[0].joinpath(*Path(name).parts[2:]), draw)
        return counterpart(path, self.other.folder / name, draw)

    def _after_it(self, project, command, case, code, before):
        """Return what is wrong, and how the command recovered."""
        wrong, recovery, text = [], Recovery(RECOVERED), project.output()
        if code == 0:
            if Path(case.name).name in MUST_REFUSE or case.kind == CONFLICT:
                wrong.append("the command must refuse it and did not")
        else:
            wrong.append("" if "Traceback" not in text and text.strip() else f"a traceback: {text[-900:]}")
            wrong.append(self._wrong_lock(project, before))
            recovery = self._recover(project, command, case)
            wrong.append(f"{recovery.finding}; first refusal: {text[-900:]}" if recovery.finding else "")
        if not recovery.finding:
            wrong += [self._wrong_result(project), leftovers(project)]
        return "; ".join(filter(None, wrong)), recovery

    def _recover(self, project, command, case):
        if case.name == "params.yaml":  # a file of the user, which only git restores
            project.ok("git", "checkout", "params.yaml")
        return recover_by_remedy(project, command)

    def _wrong_lock(self, project, before):
        """Return the stages whose record in dvc.lock is neither the previous one nor the reference."""
        after, wanted = read_stages(project.folder / "dvc.lock"), read_stages(self.done.folder / "dvc.lock")
        wrong = [name for name in after if after[name] not in (before.get(name), wanted.get(name))]
        return f"recorded despite a refusal: {', '.join(wrong)}" if wrong else ""

    def _wrong_result(self, project):
        """Return how outputs, dvc.lock and cache differ from the reference."""
        found, wanted = project.result(), self.templates.reference
        objects = {name: data for name, data in wanted.items() if "/runs/" not in name}
        wrong = difference(without_cache(found), without_cache(wanted)) or wrong_cache(found, objects)
        damaged = [
            name
            for name, data in found.items()
            if name.startswith(CACHED[0]) and not _is_own_hash(name, data)
        ]
        return "; ".join(filter(None, [wrong, f"damaged in the cache: {damaged}" if damaged else ""]))


def read_stages(lock):
    """Return the stages that the file *lock* records; an empty dict if it cannot be read."""
    try:
        return dict(read_yaml(lock)["stages"])
    except Exception:  # noqa: BLE001  it may be damaged in any way
        return {}


def _is_own_hash(name, data):
    """Return whether the name of the cache object *name* is the hash of its content."""
    folder, file = Path(name).parts[-2:]
    return hashlib.md5(data, usedforsecurity=False).hexdigest() == (folder + file).removesuffix(".dir")


def _family(name):
    """Return what kind of file *name* is."""
    path = Path(name)
    if name.startswith(".dvc/cache/files"):
        return "folder object" if path.suffix == ".dir" else "file object"
    if name.startswith(".dvc/cache/runs"):
        return "run-cache entry"
    return (
        kind_of_file(Path(*path.parts[1:]))
        if name.startswith(".runs/") and len(path.parts) > 2
        else ("/".join(path.parts[:2]) if path.parts[0] in ("artifacts", "data") else name)
    )


def run(asked, folder, until):
    """Return a row for each trial."""
    damages = Damages(folder, asked.seed)
    indices = [asked.replay] if asked.replay is not None else list(range(asked.count))
    return run_trials(damages.trial, indices, asked.jobs, until)
