import sys

from recorder import Recorder

sys.modules[__name__] = Recorder(__name__)
