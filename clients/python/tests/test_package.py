"""The package as a whole: its version, its types, and what it exports."""

import importlib.util
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest
import zipfile

import rankd

SOURCE = pathlib.Path(__file__).parents[1]
PACKAGE = pathlib.Path(rankd.__file__).parent


class Package(unittest.TestCase):
    def test_version(self):
        """Goal: the package has the version of the project."""
        self.assertIn(f'version = "{os.environ["RK_TEST_VERSION"]}"', (SOURCE / "pyproject.toml").read_text())

    def test_exports(self):
        """Goal: every name of __all__ exists, and type checkers find the types."""
        for name in rankd.__all__:
            self.assertTrue(hasattr(rankd, name), name)
        self.assertTrue((PACKAGE / "py.typed").exists())
        self.assertTrue((PACKAGE / "v1" / "worker_pb2.pyi").exists())

    @unittest.skipUnless(importlib.util.find_spec("setuptools") and importlib.util.find_spec("wheel"),
                         "setuptools and wheel are not installed")
    def test_wheel(self):
        """Goal: the wheel that pip builds has the whole package, and can be imported."""
        with tempfile.TemporaryDirectory() as folder:
            copy = pathlib.Path(folder) / "source"
            shutil.copytree(SOURCE, copy)
            shutil.copytree(PACKAGE, copy / "src" / "rankd", dirs_exist_ok=True,
                            ignore=shutil.ignore_patterns("__pycache__"))
            built = subprocess.run([sys.executable, "-c", "from setuptools import build_meta; "
                                    "print(build_meta.build_wheel('.'))"], cwd=copy, capture_output=True, text=True)
            self.assertEqual(built.returncode, 0, built.stderr)
            wheel = copy / built.stdout.splitlines()[-1]
            for path in PACKAGE.rglob("*.py*"):
                if path.suffix in (".py", ".pyi"):
                    self.assertIn(str(path.relative_to(PACKAGE.parent)), zipfile.ZipFile(wheel).namelist())
            found = subprocess.run([sys.executable, "-c", "import rankd; print(rankd.__file__)"], capture_output=True,
                                   text=True, env={**os.environ, "PYTHONPATH": str(wheel)})
            self.assertIn(str(wheel), found.stdout, found.stderr)

    @unittest.skipUnless(importlib.util.find_spec("mypy"), "mypy is not installed")
    def test_types(self):
        """Goal: the package and the example are completely typed, in mypy's strict mode; a wrong type is
        detected."""
        def check(*paths):
            return subprocess.run([sys.executable, "-m", "mypy", "--config-file", SOURCE / "pyproject.toml",
                                   "--cache-dir", os.devnull, *paths], cwd=PACKAGE.parent, capture_output=True, text=True,
                                  env={**os.environ, "MYPYPATH": str(PACKAGE.parent)})

        good = check("-p", "rankd")
        self.assertEqual(good.returncode, 0, good.stdout + good.stderr)
        good = check(SOURCE / "examples" / "grpo_digits.py")
        self.assertEqual(good.returncode, 0, good.stdout + good.stderr)
        bad = check("-c", "import rankd\nrankd.connect('h:1').rollout.generate_sequences({}, {'response_length': 'x'})")
        self.assertIn("response_length", bad.stdout)


if __name__ == "__main__":
    unittest.main()
