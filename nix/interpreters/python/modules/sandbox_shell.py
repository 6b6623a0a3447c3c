"""What a notebook has beside Python: lines that begin with % or !, and get_ipython().

The driver loads this module when code has such a line, or calls get_ipython. Lines
that only prepare a notebook's page do nothing. Commands run in the shell. What would
install packages succeeds if they are there, and ends the call otherwise.
"""

import ast
import getopt
import io
import os
import re
import shlex
import subprocess
import sys
import time

import sandbox_display

namespace = sys.modules['__main__'].__dict__  # of the code
began = None  # when the cell began whose time is to be printed
captured = None  # the output of the cell that runs, if it is to be kept
loaded = None  # when the modules of the code were changed, by their files, if they are to be loaded again

# Magics that change how a notebook looks or reloads: nothing here does.
HARMLESS = {
    'alias', 'alias_magic', 'autoawait', 'autocall', 'automagic', 'colors', 'config', 'debug', 'load', 'load_ext', 'logoff', 'logon',
    'history', 'hist', 'lsmagic', 'magic', 'matplotlib', 'notebook', 'pdb', 'pprint', 'precision', 'quickref', 'reload_ext', 'store', 'unload_ext', 'xmode'}
TIMED = {'memit', 'time'}
HARMLESS_CELLS = {'javascript', 'js', 'latex', 'svg'}
INSTALLERS = re.compile(r'(?:python3? -m |uv )?(?:pip3?|conda|mamba)\s+install\s+(.*)')
LINE = re.compile(r'(\s*)(?:(\w[\w.,\s\[\]\'"]*?)\s*=\s*)?(%|!{1,2})\s*([^%!\s].*)')
ABOUT = re.compile(r'\s*(?:(\?{1,2})([\w.]+)|([\w.]+)(\?{1,2}))\s*')
CELL = re.compile(r'\s*%%(\w+)[ \t]*([^\n]*)\n?')


def rewritten(line):
    """A line of a notebook as a line of Python, or None if it is no such line."""
    found = LINE.fullmatch(line)
    if not found:
        found = ABOUT.fullmatch(line)
        if not found:
            return None
        return 'get_ipython().about(%r, %r)' % (found[2] or found[3], (found[1] or found[4]) == '??')
    indent, target, sign, rest = found.groups()
    name, _, argument = rest.partition(' ')
    if sign != '%':
        call = 'get_ipython().%s(%r)' % ('getoutput' if target or sign == '!!' else 'system', rest)
    elif not known(name):
        return None
    elif name in TIMED:
        return indent + (target + ' = ' if target else '') + timed(argument.strip() or 'None')
    else:
        call = 'get_ipython().run_line_magic(%r, %r)' % (name, argument)
    return indent + (target + ' = ' if target else '') + call


def timed(text):
    """A statement that prints how long its expression took."""
    try:
        statement, = ast.parse(text).body
    except ValueError:
        return text
    if any(isinstance(part, (ast.Await, ast.NamedExpr)) for part in ast.walk(statement)) or not isinstance(statement, (ast.Assign, ast.Expr)):
        return text
    statement.value = ast.parse('get_ipython().timed(lambda: (%s))' % ast.unparse(statement.value)).body[0].value
    return ast.unparse(statement)


def known(name):
    return name in HARMLESS or name in TIMED or hasattr(Shell, 'line_' + name)


def translate(text, error):
    """Code with the line that a SyntaxError is about rewritten, or None. Strings with
    such lines in them stay as they are, since no error is about them."""
    found = CELL.match(text)
    if found:
        name, argument = found.groups()
        body = text[found.end():]
        if name == 'time':
            return first('get_ipython().begin_time()', body)
        if name == 'capture':
            return first('get_ipython().begin_capture(%r)' % argument, body)
        if name in HARMLESS_CELLS:
            return ''
        if hasattr(Shell, 'cell_' + name):
            return 'get_ipython().run_cell_magic(%r, %r, %r)' % (name, argument, body)
        return None
    lines = text.split('\n')
    number = (error.lineno or 0) - 1
    if not 0 <= number < len(lines):
        return None
    line = rewritten(lines[number])
    if line is None:
        return None
    # A command goes on in the next line after a backslash.
    extra = number + 1
    while lines[number].endswith('\\') and extra < len(lines):
        lines[number], lines[extra] = lines[number][:-1] + lines[extra].strip(), ''
        line = rewritten(lines[number])
        extra += 1
    lines[number] = line
    return '\n'.join(lines)


def first(statement, body):
    """A cell with a statement before it. Those of __future__ stay the first."""
    future = re.match(r'(?:\s*(?:#.*|from __future__ import .*)\n)*', body).end()
    return body[:future] + statement + '\n' + body[future:]


def options(magic, line, short, *long):
    """The options with which the line of a magic begins, and what follows them. One that is not known is
    an error: whoever gives it relies on it."""
    words = line.split()
    try:
        given, rest = getopt.getopt(words, short, long)
    except getopt.GetoptError as error:
        raise ValueError('%%%s: %s here' % (magic, error)) from None
    return dict(given), line.split(None, len(words) - len(rest))[-1] if rest else ''


def expand(command):
    """A command with the code's variables in it, as $name and {expression}."""
    def value(match):
        try:
            return str(eval(match.group(1), namespace))
        except Exception:
            return match.group(0)

    command = re.sub(r'(?<![$\\{])\{([^{}\n]+)\}', value, command)
    return re.sub(r'(?<![$\\])\$([A-Za-z_]\w*)', lambda match: str(namespace[match.group(1)]) if match.group(1) in namespace else match.group(0), command)


def run(command, **options):
    sys.stdout.flush()
    return subprocess.run(command, shell=isinstance(command, str), stdin=subprocess.DEVNULL, **options)


def install(arguments):
    """Does what an installer of packages does where all of them are there."""
    from importlib import metadata
    quiet = re.search(r'(?:^|\s)(?:-q+|--quiet)(?:\s|$)', arguments)
    for word in arguments.split():
        if word in (';', '&&', '|', '>', '2>', '#') or word.startswith(('>', '2>')):
            break
        name = re.split(r'[<>=!~\[;@]', word.strip('"\''), maxsplit=1)[0]
        if word.startswith('-') or not re.fullmatch(r'[A-Za-z0-9][\w.-]*', name):
            continue
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            if name not in ('pip', 'setuptools', 'wheel'):
                print('ERROR: No matching distribution found for %s' % name, file=sys.stderr)
                raise SystemExit(1) from None
            continue
        if not quiet:
            print('Requirement already satisfied: %s (%s)' % (name, version))


def duration(seconds):
    unit, factor = next(pair for pair in (('s', 1), ('ms', 1e3), ('us', 1e6), ('ns', 1e9)) if seconds * pair[1] >= 1 or pair[0] == 'ns')
    return '%.3g %s' % (seconds * factor, unit)


def print_time(start):
    print('Wall time: %s' % duration(time.perf_counter() - start))


class Captured:
    """The output of a cell that begins with %%capture."""

    def __init__(self, name, given):
        self.name, self.streams, self.outputs = name, (sys.stdout, sys.stderr), []
        if '--no-stdout' not in given:
            sys.stdout = io.StringIO()
        if '--no-stderr' not in given:
            sys.stderr = io.StringIO()
        if '--no-display' not in given:
            sandbox_display.kept = self.outputs

    def end(self):
        self.stdout, self.stderr = self.texts = [
            '' if stream is own else stream.getvalue() for stream, own in zip((sys.stdout, sys.stderr), self.streams)]
        sys.stdout, sys.stderr = self.streams
        sandbox_display.kept = None
        if self.name:
            namespace[self.name] = self

    def show(self):
        for stream, text in zip((sys.stdout, sys.stderr), self.texts):
            stream.write(text)
        for image in self.outputs:
            sandbox_display.show(image)

    __call__ = show

    def __str__(self):
        return self.stdout


class TimeitResult:
    """What %timeit -o returns."""

    def __init__(self, loops, all_runs):
        self.loops, self.repeat, self.all_runs = loops, len(all_runs), all_runs
        self.timings = [taken / loops for taken in all_runs]
        self.average, self.best, self.worst = sum(self.timings) / self.repeat, min(self.timings), max(self.timings)
        self.stdev = (sum((taken - self.average) ** 2 for taken in self.timings) / self.repeat) ** .5

    def __str__(self):
        return '%s per loop (mean of %d run%s, %d loop%s each)' % (
            duration(self.average), self.repeat, 's' * (self.repeat > 1), self.loops, 's' * (self.loops > 1))

    def __repr__(self):
        return '<TimeitResult : %s>' % self


def reload_changed():
    """Loads the code's own modules again whose files have changed, and has its names of their parts stand
    for the new ones."""
    import importlib.util
    for module in list(sys.modules.values()):
        file = getattr(module, '__file__', None) or ''
        if not file.endswith('.py') or file.startswith(('/nix/', sys.prefix + '/', sys.base_prefix + '/')) or module.__name__ == '__main__':
            continue
        try:
            changed = os.stat(file).st_mtime_ns
            if loaded.setdefault(file, changed) == changed:
                continue
            loaded[file] = changed
            # What was compiled is known by the second alone.
            if os.path.exists(compiled := importlib.util.cache_from_source(file)):
                os.unlink(compiled)
            former = dict(vars(module))
            importlib.reload(module)
        except Exception as error:
            print('[autoreload of %s failed: %s: %s]' % (module.__name__, type(error).__name__, error), file=sys.stderr)
            continue
        for name, value in list(namespace.items()):
            old = getattr(value, '__name__', None)
            if value is former.get(old) and value is not None and hasattr(module, old):
                namespace[name] = getattr(module, old)


def begin_call():
    """Loads changed modules again, if the code asks for that."""
    if loaded is not None:
        reload_changed()


def show_all(body):
    """Has a cell show the values of all its expressions, as InteractiveShell can."""
    for statement in body:
        if isinstance(statement, ast.Expr):
            shown = ast.parse("__import__('sys').displayhook(0)", mode='eval').body
            for node in ast.walk(shown):
                ast.copy_location(node, statement)
            shown.args[0] = statement.value
            statement.value = shown


def end_call():
    """Gives back the streams of a cell that kept its output, and prints how long a cell
    took that asked for it."""
    global began, captured
    if captured is not None:
        captured, ended = None, captured
        ended.end()
    if began is not None:
        start, began = began, None
        print_time(start)


class Shell:
    """The part of IPython's shell that notebooks use."""

    class Events:
        def register(self, name, function):
            pass

        unregister = register

    events = Events()
    config = {}

    @property
    def user_ns(self):
        return namespace

    def run_line_magic(self, name, line='', **options):
        method = getattr(self, 'line_' + name, None)
        if method is not None:
            return method(line)
        if name in HARMLESS:
            return None
        raise NameError('there is no magic %%%s here' % name)

    magic = lambda self, text: self.run_line_magic(*(text.lstrip('%').split(None, 1) + [''])[:2])

    def run_cell_magic(self, name, line, cell):
        method = getattr(self, 'cell_' + name, None)
        if method is not None:
            return method(line, cell)
        if name in HARMLESS_CELLS:
            return None
        raise NameError('there is no magic %%%%%s here' % name)

    def system(self, command):
        command = expand(command)
        found = INSTALLERS.match(command.strip())
        if found:
            return install(found.group(1))
        namespace['_exit_code'] = run(command).returncode

    def getoutput(self, command):
        return run(expand(command), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True).stdout.splitlines()

    def ev(self, text):
        return eval(text, namespace)

    def run_cell(self, text, **options):
        exec(text, namespace)

    ex = run_cell

    def set_custom_exc(self, *arguments):
        pass

    def line_pip(self, line):
        self.system('pip ' + line)

    def line_conda(self, line):
        self.system('conda ' + line)

    line_mamba, line_sx = line_conda, lambda self, line: self.getoutput(line)

    def line_cd(self, line):
        os.chdir(os.path.expanduser(line.strip() or '~'))

    def line_pwd(self, line):
        return os.getcwd()

    def line_autoreload(self, line):
        global loaded
        mode = line.strip().lower()
        if mode in ('0', 'off'):
            loaded = None
        elif mode in ('', 'now', '2', 'all', '3', 'complete'):
            loaded = {} if loaded is None else loaded
            reload_changed()
        else:
            raise ValueError('%%autoreload %s: there are 0 and 2 here' % mode)

    def line_env(self, line):
        name, sign, value = line.partition('=')
        if not sign:
            name, _, value = line.partition(' ')
        if not line:
            return dict(os.environ)
        if not value:
            return os.environ.get(name)
        os.environ[name.strip()] = value.strip()
        print('env: %s=%s' % (name.strip(), value.strip()))

    line_set_env = line_env

    def line_who(self, line):
        print('\t'.join(name for name in namespace if not name.startswith('_')))

    line_whos = line_who

    def line_xdel(self, line):
        namespace.pop(line.strip(), None)

    def timed(self, function):
        start = time.perf_counter()
        try:
            return function()
        finally:
            print_time(start)

    def begin_time(self):
        global began
        began = time.perf_counter()

    def begin_capture(self, line):
        global captured
        words = line.split()
        name = next((word for word in words if word[0] != '-'), '')
        captured = Captured(name, options('capture', ' '.join(word for word in words if word != name), '', 'no-stdout', 'no-stderr', 'no-display')[0])

    def about(self, name, whole=False):
        """Says what a name stands for, or shows its source."""
        import inspect
        try:
            value = eval(name, namespace)
        except Exception:
            print('Object `%s` not found.' % name)
            return
        if whole:
            try:
                print(inspect.getsource(value).rstrip('\n'))
                return
            except (OSError, TypeError):
                pass
        try:
            print('Signature: %s%s' % (name, inspect.signature(value)))
        except (TypeError, ValueError):
            print('Type: %s\nValue: %.200r' % (type(value).__name__, value))
        text = inspect.getdoc(value)
        if text and (callable(value) or inspect.ismodule(value)):
            print('Docstring: ' + text)

    line_pdoc = line_pinfo = lambda self, line: self.about(line.strip())
    line_psource = line_pinfo2 = lambda self, line: self.about(line.strip(), True)

    def line_timeit(self, line, cell=None):
        import timeit
        given, text = options('timeit', line, 'n:r:p:tcqo')
        statement, setup = (text, 'pass') if cell is None else (cell, text or 'pass')
        timer, loops, runs = timeit.Timer(statement, setup, globals=namespace), int(given.get('-n', 0)), []
        if not loops:
            loops, taken = timer.autorange()
            runs = [taken]
        wanted = int(given.get('-r', 1 if runs and runs[0] >= 1 else 3))
        runs += timer.repeat(wanted - len(runs), loops) if wanted > len(runs) else []
        result = TimeitResult(loops, runs)
        if '-q' not in given:
            print(result)
        return result if '-o' in given else None

    cell_timeit = line_timeit

    def line_prun(self, line, cell=''):
        import cProfile
        import pstats
        given, text = options('prun', line, 'l:s:rqD:')
        profile = cProfile.Profile()
        try:
            profile.runctx(text + '\n' + cell, namespace, namespace)
        finally:
            statistics = pstats.Stats(profile).strip_dirs().sort_stats(given.get('-s', 'time'))
            if '-D' in given:
                statistics.dump_stats(given['-D'])
            if '-q' not in given:
                limit = given.get('-l', '20')
                statistics.print_stats(int(limit) if limit.isdigit() else limit)
        return statistics if '-r' in given else None

    cell_prun = line_prun

    def line_run(self, line):
        import runpy
        words = shlex.split(line)
        before, sys.argv = sys.argv, words
        try:
            namespace.update({name: value for name, value in runpy.run_path(words[0], run_name='__main__').items() if not name.startswith('__')})
        finally:
            sys.argv = before

    def line_reset(self, line):
        for name in [name for name in namespace if not name.startswith('_')]:
            del namespace[name]

    def line_pylab(self, line):
        exec('import numpy\nimport matplotlib\nfrom matplotlib import pylab, mlab, pyplot\nnp = numpy\nplt = pyplot\n'
             'from pylab import *\nfrom numpy import *', namespace)

    def cell_bash(self, line, cell):
        self.cell_script(line, cell, 'bash')

    cell_sh = cell_shell = cell_bash

    def cell_script(self, line, cell, *program):
        """Runs a program with a cell as its standard input; a shell without arguments, with the cell as its code."""
        words, streams, lenient = shlex.split(line), {}, False
        while words and words[0].startswith('--'):
            name, _, value = words.pop(0)[2:].partition('=')
            if name in ('out', 'err') and (value or words):
                streams[name] = value or words.pop(0)
            elif name in ('no-raise-error', 'raise-error'):
                lenient = name == 'no-raise-error'
            else:
                raise ValueError('%%%%script: option --%s not recognized here' % name)
        words = [*program, *words]
        if not words:
            raise ValueError('%%script: no program is named')
        sys.stdout.flush()
        given = {'std' + name: subprocess.PIPE for name in streams}
        if words == ['bash']:
            done = subprocess.run(['bash', '-c', cell], stdin=subprocess.DEVNULL, text=True, **given)
        else:
            done = subprocess.run(words, input=cell, text=True, **given)
        for name, variable in streams.items():
            namespace[variable] = getattr(done, 'std' + name)
        if done.returncode and not lenient:
            raise subprocess.CalledProcessError(done.returncode, words[0])

    def cell_writefile(self, line, cell):
        add = line.startswith('-a ')
        path = os.path.expanduser(line.removeprefix('-a ').strip())
        print('%s %s' % ('Appending to' if add else 'Overwriting' if os.path.exists(path) else 'Writing', path))
        with open(path, 'a' if add else 'w') as file:
            file.write(cell)

    cell_file = cell_writefile

    def cell_perl(self, line, cell):
        self.cell_script(line, cell, 'perl')

    def cell_ruby(self, line, cell):
        self.cell_script(line, cell, 'ruby')

    def cell_python3(self, line, cell):
        self.cell_script(line, cell, 'python3', '-')

    cell_python = cell_python3

    def cell_html(self, line, cell):
        sandbox_display.display(sandbox_display.HTML(cell))

    cell_HTML = cell_html

    def cell_markdown(self, line, cell):
        print(cell.rstrip('\n'))


def add_command(name):
    setattr(Shell, 'line_' + name, lambda self, line: self.system(name + ' ' + line))


for name in 'cat', 'cp', 'ls', 'mkdir', 'mv', 'rm', 'rmdir':
    add_command(name)
Shell.line_less = Shell.line_more = Shell.line_pycat = Shell.line_cat
shell = Shell()
