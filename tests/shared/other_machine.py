"""Programs that run ``learner`` as on a machine with other properties."""

from templates import short

PROPERTIES = {
    "torch build": """
import torch
torch.__version__ += ".other"
torch.version.__version__ += ".other"
""",
    "name of the CPU": """
import pathlib, platform
read = pathlib.Path.read_text
def read_other(path, *arguments, **options):
    text = read(path, *arguments, **options)
    return text.replace("model name", "model name: Other\\nold") if str(path) == "/proc/cpuinfo" else text
pathlib.Path.read_text = read_other
platform.processor = lambda: "Other"
""",
    "hostname": """
import platform, socket
socket.gethostname = platform.node = lambda: "other-host"
""",
    "user": """
import getpass, os
os.environ.update(USER="other", LOGNAME="other")
getpass.getuser = lambda: "other"
""",
    "locale": """
import os
os.environ.update(LC_ALL="C", LANG="C")
""",
    "time zone": """
import os, time
os.environ["TZ"] = "XYZ-13:45"
time.tzset()
""",
    "path": "",  # the folder of the project has another name
    "number of cores": """
import os
os.cpu_count = lambda: 7
os.sched_getaffinity = lambda pid: set(range(7))
""",
    "umask": """
import os
os.umask(0o077)
""",
}
"""Name of a property of a machine to the program that replaces it."""
RUN = """
import runpy, sys
{change}
runpy.run_module("pipeline", run_name="__main__", alter_sys=True)
"""


def place(folder, home, change, name="ein Projekt, größer"):
    """Return a project in *folder* with a program that runs ``learner`` after the program *change*."""
    project = short(folder / name, home)
    (project.folder / "other_machine.py").write_text(RUN.format(change=change))
    return project
