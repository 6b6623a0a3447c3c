"""Runs the cells of a notebook one after the other, as a notebook does. A NUL byte ends
the output of each cell on both streams; JSON with status and figures of all is last."""

import ast
import asyncio
import builtins
import importlib.machinery
import json
import linecache
import os
import re
import sys
import traceback
import types

cells = json.load(open(sys.argv[1]))
sys.argv = ['']
sys.path[0] = os.getcwd()
sys.modules['__main__'] = types.ModuleType('__main__')  # without the names of this program
main = sys.modules['__main__'].__dict__
main['__builtins__'] = builtins
builtins.display = lambda *values: print(*map(repr, values), sep='\n')


class Nothing(types.ModuleType):
    """What a notebook imports to prepare its page. Every name in it is a function or class
    that does nothing."""

    __path__ = []
    __version__ = '0'

    def __getattr__(self, name):
        if name.startswith('_'):
            raise AttributeError(name)
        return getattr(builtins, name, None) or self

    def __call__(self, *arguments, **options):
        return arguments[0] if len(arguments) == 1 and callable(arguments[0]) else self


class Finder:
    """Finds the modules that only a notebook has."""

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name.partition('.')[0] in ('IPython', 'ipykernel', 'ipywidgets', 'matplotlib_inline'):
            return importlib.machinery.ModuleSpec(name, cls, is_package=True)

    create_module = staticmethod(lambda spec: Nothing(spec.name))
    exec_module = staticmethod(lambda module: None)


sys.meta_path.append(Finder)
builtins.get_ipython = Nothing('IPython')
facts = []
loop = None
figures = 0  # that are values of the cell


def show(value):
    """Shows a cell's value. A notebook shows a figure as an image."""
    global figures
    if type(value).__module__ == 'matplotlib.figure':
        figures += 1
    else:
        sys.__displayhook__(value)


sys.displayhook = show


def plain(source):
    """A cell without the lines that only a notebook understands."""
    if source.lstrip().startswith('%%'):
        return ''
    source = re.sub(r'^%run (\S+)$', r"__import__('runpy').run_path('\1', run_name='__main__') and None", source, flags=re.M)
    source = re.sub(r"^\s*(?:matplotlib|mpl)\.use\(['\"](?:nbagg|notebook|ipympl|widget)['\"].*$", '', source, flags=re.M | re.I)
    return re.sub(r'^\s*(?:[%!].*|\w+\s*=\s*[%!].*|[\w.]+\?+)$', '', source, flags=re.M)


def run(source, name):
    global loop
    linecache.cache[name] = (len(source), None, [line + '\n' for line in source.split('\n')], name)
    tree = ast.parse(plain(source), name)
    last = None
    if tree.body and isinstance(tree.body[-1], ast.Expr) and not source.rstrip().endswith(';'):
        last = ast.Expression(tree.body.pop().value)
    for part, mode in ((tree, 'exec'), (last, 'eval')):
        if part is None:
            continue
        code = compile(part, name, mode, ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        value = eval(code, main)
        if code.co_flags & 0x80:
            loop = loop or asyncio.new_event_loop()
            value = loop.run_until_complete(value)
        if mode == 'eval':
            sys.displayhook(value)


for number, source in enumerate(cells, 1):
    status = images = figures = 0
    try:
        run(source, '<call %d>' % number)
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        status = 1
        traceback.print_exc()
    pyplot = sys.modules.get('matplotlib.pyplot')
    if pyplot:
        images = figures + sum(len(pyplot.figure(n).get_children()) > 1 for n in pyplot.get_fignums())
        pyplot.close('all')
    facts.append({'Status': status, 'Images': images})
    sys.stdout.flush()
    sys.stderr.flush()
    os.write(1, b'\0')
    os.write(2, b'\0')
os.write(2, json.dumps(facts).encode())
os._exit(0)
