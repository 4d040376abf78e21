"""Loads a Python file or module of the user's, for rankd_reward.py and rankd_dataset.py beside this file."""
import importlib
import importlib.util
import os
import sys


def load_module(path, key):
    """The module at path, or that of pkg://MODULE. Errors name the key of the job that gives the path."""
    if path.startswith("pkg://"):
        return importlib.import_module(path[len("pkg://"):])
    if not os.path.isfile(path):
        raise FileNotFoundError(f"{key}: there is no file '{path}'")
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
    spec = importlib.util.spec_from_file_location("custom_module", path)
    if spec is None:
        raise ImportError(f"{key}: '{path}' is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
