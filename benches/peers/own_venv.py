"""Virtual environments of the peer benchmarks.

`enter(name, module, requirement)` restarts the calling script inside the virtual environment `.venv/NAME` next to this file
(ignored by git), which it creates and fills first if the module is missing. Uses only the standard library.
"""

import pathlib
import subprocess
import sys
import venv

FOLDER = pathlib.Path(__file__).resolve().parent / ".venv"


def enter(name, module, requirement):
    """Returns only inside the environment; otherwise runs the script there and exits."""
    home = FOLDER / name
    python = home / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    if pathlib.Path(sys.prefix).resolve() == home.resolve():
        return
    if not python.exists():
        print(f"creating {home}", file=sys.stderr)
        venv.create(home, with_pip=True)
    if subprocess.run([python, "-c", f"import {module}"], capture_output=True).returncode != 0:
        print(f"installing {requirement}", file=sys.stderr)
        pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", requirement]
        if subprocess.run(pip, stdout=sys.stderr).returncode != 0:
            sys.exit(f"installing {requirement} into {home} failed; see the output above")
    sys.exit(subprocess.run([python, *sys.argv]).returncode)
