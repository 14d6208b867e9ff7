"""Where does a peer's Python package come from?

`enter(name, module, requirement)` restarts the calling script inside a virtual environment of that name under `.venv` beside
these scripts (git-ignored), which it makes and fills first where the module is missing. Standard library only.
"""

import pathlib
import subprocess
import sys
import venv

FOLDER = pathlib.Path(__file__).resolve().parent / ".venv"


def enter(name, module, requirement):
    """Returns only inside the environment, where `module` can be imported; otherwise runs the script there and ends."""
    home = FOLDER / name
    python = home / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    if pathlib.Path(sys.prefix).resolve() == home.resolve():
        return
    if not python.exists():
        print(f"making {home}", file=sys.stderr)
        venv.create(home, with_pip=True)
    if subprocess.run([python, "-c", f"import {module}"], capture_output=True).returncode != 0:
        print(f"installing {requirement}", file=sys.stderr)
        pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", requirement]
        if subprocess.run(pip, stdout=sys.stderr).returncode != 0:
            sys.exit(f"{requirement} could not be installed into {home}; see above, then run this again")
    sys.exit(subprocess.run([python, *sys.argv]).returncode)
