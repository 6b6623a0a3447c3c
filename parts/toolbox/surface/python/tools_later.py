"""Gives code the names tools and atools. Their module loads when code uses one of them."""

import _thread
import builtins

lock = _thread.allocate_lock()


class Later:
    def __init__(self, load):
        self.__dict__['_load'] = load

    def _module(self):
        # Threads may begin with it at the same time, and would see a part of it.
        with lock:
            return self._load()

    def __getattr__(self, name):
        return getattr(self._module(), name)

    def __dir__(self):
        return dir(self._module())

    def __repr__(self):
        return '<tools: help(tools) lists what can be called>'

    # So that help() shows the module.
    __class__ = property(lambda self: type(self._module()))
    __doc__ = property(lambda self: self._module().__doc__)


def install(load):
    builtins.tools = Later(lambda: load('tools'))
    builtins.atools = Later(lambda: load('tools').atools)
