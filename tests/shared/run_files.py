"""The files of a run, to compare two runs."""


def read_run_files(directory):
    """Return the content of every file of a run by its path, except for the log with times."""
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file() and path.name != "experiment.log"
    }
