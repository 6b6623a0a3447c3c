# Runs code in this interpreter for the agent. It imports only modules that the
# interpreter has loaded already: others could be shadowed, and would cost start-up
# time. The code may redefine any name (print, exit, sys.stdout, even len), so this
# file binds those that it uses before the code runs.

import _ast
import _frozen_importlib_external
import _io
import _signal
import _thread
import atexit
import builtins
import gc
import os
import sys
import time

BaseException, Exception, SystemExit, KeyboardInterrupt, OSError = (
    builtins.BaseException, builtins.Exception, builtins.SystemExit,
    builtins.KeyboardInterrupt, builtins.OSError)
any, compile, eval, exec, getattr, hasattr, int, isinstance, len, list, str, type = (
    builtins.any, builtins.compile, builtins.eval, builtins.exec,
    builtins.getattr, builtins.hasattr, builtins.int, builtins.isinstance,
    builtins.len, builtins.list, builtins.str, builtins.type)
close, getpid, leave, pread, read, write = (
    os.close, os.getpid, os._exit, os.pread, os.read, os.write)
get_handler, set_handler = _signal.getsignal, _signal.signal
get_ident, monotonic = _thread.get_ident, time.monotonic

CONTROL, CODE = 3, 4
# The control channel's descriptor while a program runs, which may expect that it
# gets the lowest descriptors.
ASIDE = 250
SIGINT, SIGURG = 2, 23
# A loop that prints more lines than these in the time, in seconds, prints pieces of this size, in
# bytes: a system call for each line takes twenty times what Python does.
MANY_LINES, SHORT_TIME, PIECE = 64, 0.02, 1 << 10
# Flags of compile, as in Include/cpython/compile.h. Importing ast for them would
# cost a millisecond.
ONLY_AST, TOP_LEVEL_AWAIT = 0x400, 0x2000
CO_COROUTINE, CO_FUTURE_ANNOTATIONS = 0x80, 0x1000000  # as in Include/cpython/code.h
# Bounds of the sources that are kept for tracebacks: characters and calls.
KEEP_SOURCES, KEEP_CALLS = 4 << 20, 1000

ROOT = os.getcwd()
# What the driver brings for code to import lies beside it.
MODULES = [os.path.dirname(sys.argv[1]) + '/modules']
PID = getpid()
CHANNEL = os.fstat(CONTROL).st_ino
main = sys.modules['__main__'].__dict__
sys_modules = sys.modules
stdlib = list(sys.path)
sources = {}  # of the newest calls, the oldest first
kept = 0  # characters in them
shown = False  # linecache was told of all of them
tasks = None  # the module sandbox_tasks, once code has imported asyncio
running = False  # code that awaits nothing
alone = False  # the code is a program, after which nothing can be asked
future = 0  # what calls have imported from __future__
# The methods by which a value says that it has more to show than its repr.
PLAIN = {bool, bytes, dict, float, int, list, set, str, tuple}
RICH = ('_ipython_display_', '_repr_mimebundle_', '_repr_html_', '_repr_png_', '_repr_svg_', '_repr_markdown_', '_repr_jpeg_')


def ignore(signum, frame):
    """Handles SIGINT while no code runs: the signal is late, or meant for a child."""


def load(name):
    """Imports a module of the interpreter, whatever lies in the workspace."""
    module = sys_modules.get(name)
    if module is None:
        path = sys.path
        sys.path = stdlib
        try:
            module = __import__(name)
        finally:
            sys.path = path
    return module


def remember(filename, code):
    """Keeps a call's source, so that tracebacks can show its lines, and drops the
    oldest sources. It runs in every call, so it must not scan all of them."""
    global kept
    sources[filename] = code
    kept += len(code)
    linecache = sys_modules.get('linecache')
    while kept > KEEP_SOURCES or len(sources) > KEEP_CALLS:
        oldest = next(iter(sources))
        if oldest == filename:
            break
        kept -= len(sources.pop(oldest))
        if linecache is not None:
            linecache.cache.pop(oldest, None)
    if linecache is not None:
        if shown:
            show(linecache, filename)
        else:
            register()


def register():
    """Gives linecache all sources, when it has been imported and whenever it may have
    been cleared since."""
    global shown
    linecache = sys_modules.get('linecache')
    if linecache is None:
        return
    shown = True
    for name in sources:
        show(linecache, name)


def show(linecache, name):
    code = sources[name]
    if not code.endswith('\n'):
        code += '\n'  # as linecache does with a file
    # checkcache leaves an entry without a modification time alone.
    linecache.cache[name] = (len(code), None, code.splitlines(True), name)


def report(error):
    """Prints an error's traceback from the code's first frame on."""
    tb = error.__traceback__
    while tb is not None and tb.tb_frame.f_code.co_filename not in sources:
        tb = tb.tb_next
    if tb is None and not isinstance(error, SyntaxError):
        tb = error.__traceback__  # raised outside the code: show all but the driver
        while tb is not None and tb.tb_frame.f_code.co_filename == '<driver>':
            tb = tb.tb_next
    error.__traceback__ = below = tb
    while below is not None:  # what the driver adds to functions of os is no part of the code
        while below.tb_next is not None and below.tb_next.tb_frame.f_code.co_filename == '<driver>':
            below.tb_next = below.tb_next.tb_next
        below = below.tb_next
    try:
        traceback = load('sandbox_traceback')
        load('linecache')
        register()
        text = traceback.text_of(error, tb, '; sys.tracebacklimit = 99 shows all' if alone else '; traceback.print_last() shows all')
        if not alone:
            traceback.remember(error)
    except Exception:
        sys.__excepthook__(type(error), error, tb)
        return
    try:
        sys.stderr.write(text)
    except Exception:
        write(2, text.encode('utf-8', 'backslashreplace'))


def status_of(error):
    """The exit status that the interpreter gives a SystemExit."""
    code = error.code
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xff
    try:
        sys.stderr.write(str(code) + '\n')
    except Exception:
        pass
    return 1


def flush():
    settle()
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        try:
            stream.flush()
        except Exception:
            pass


class Buffer(_io.BufferedWriter):
    """Standard output that knows the last byte that was written to it, so that a
    value begins on a line of its own, and that notices a loop that prints.

    This is no subclass of FileIO: an interrupt that arrives when its write has
    written, and has not returned, would have the buffer write the same again."""

    last = b'\n'
    nonce = None  # of the call that runs
    lines, since = MANY_LINES, 0.0  # that may leave at once, from that time on
    pieces = False  # leave, and not lines
    late = False  # the time of the pieces was over within a write

    def write(self, data):
        view = memoryview(data).cast('B')
        if view:
            Buffer.last = bytes(view[-1:])
        size = _io.BufferedWriter.write(self, view)
        if Buffer.pieces:
            _io.BufferedWriter.flush(self)
            if Buffer.late:
                settle()
        else:
            Buffer.lines -= 1
            if Buffer.lines < 0:
                hurry()
        return size


class Text(_io.TextIOWrapper):
    """Standard output as text. What writes to its buffer finds nothing waiting before it."""

    @property
    def buffer(self):
        settle()
        return _io.TextIOWrapper.buffer.__get__(self)


def hurry():
    """Has pieces leave in place of lines, if there were many lines. The agent sends SIGURG soon,
    which ends that: a thread would make fork(2) unsafe, and a timer belongs to the code."""
    now = monotonic()
    many = now - Buffer.since < SHORT_TIME
    Buffer.lines, Buffer.since = MANY_LINES, now
    # The code may use the signal, or have put a file of its own at the channel's descriptor.
    if not many or not Buffer.nonce or getpid() != PID or get_ident() != THREAD:
        return
    channel = ASIDE if alone else CONTROL
    try:
        handler = get_handler(SIGURG)
        if handler is not on_time and handler != _signal.SIG_DFL or os.fstat(channel).st_ino != CHANNEL:
            return
        if handler is not on_time:
            set_handler(SIGURG, on_time)
            _signal.siginterrupt(SIGURG, False)
            os.register_at_fork(before=settle)
        Buffer.pieces = True
        STDOUT.reconfigure(line_buffering=False)
        # Last: the signal may come at once, and nothing else ends this.
        write(channel, b'soon %s\n' % Buffer.nonce)
    except Exception:
        settle()


def settle():
    """Has lines leave at once again, after those that wait."""
    if Buffer.pieces:
        try:
            STDOUT.reconfigure(line_buffering=True)
        except RuntimeError:  # this interrupts a write
            Buffer.late = True
            return
        except Exception:
            pass  # the code has closed it
        Buffer.pieces = Buffer.late = False
        Buffer.lines, Buffer.since = MANY_LINES, monotonic()


def on_time(signum, frame):
    """Handles SIGURG, whose default is to do nothing."""
    settle()


def ordered(module, *names):
    """Has functions by which something else prints, or by which this process ends, find nothing
    waiting."""
    for name in names:
        function = getattr(module, name, None)
        if function is not None:
            setattr(module, name, after_output(function))


def after_output(function):
    def ordered(*args, **kwargs):
        settle()
        return function(*args, **kwargs)

    ordered.__name__ = ordered.__qualname__ = function.__name__
    ordered.__module__, ordered.__doc__, ordered.__wrapped__ = function.__module__, function.__doc__, function
    return ordered


def begin_line():
    """Ends a line that the code has begun on standard output."""
    if sys.stdout is STDOUT:
        STDOUT.flush()
        if Buffer.last != b'\n':
            STDOUT.write('\n')


def take_back(sequence):
    """Has the agent forget what was written, but not what the code captures."""
    for stream, own in (sys.stdout, STDOUT), (sys.stderr, sys.__stderr__):
        if stream is own:
            stream.write(sequence)
            stream.flush()
    Buffer.last = b'\n'


def display(*values, **options):
    """Shows values: images as images, HTML as text. See IPython.display.display."""
    begin_line()
    return load('sandbox_display').display(*values, **options)


def get_ipython():
    """Returns what notebooks call, for the code itself. Libraries find no such name, and
    so take this for a plain interpreter."""
    if sys._getframe(1).f_globals is not main:
        raise NameError("name 'get_ipython' is not defined")
    return load('sandbox_shell').shell


def show_value(value):
    """Is sys.displayhook: shows the value of a call's last expression."""
    if value is None:
        return
    begin_line()
    kind = type(value)
    if kind not in PLAIN and (any(hasattr(kind, name) for name in RICH) or kind.__module__.startswith(('matplotlib.', 'PIL.'))):
        builtins._ = value
        load('sandbox_display').show(value)
    else:
        sys.__displayhook__(value)


def end_call():
    """Shows the figures that the code left open, as a notebook does, and the time that
    a cell took if it asks for that."""
    for name in 'sandbox_figures', 'sandbox_display', 'sandbox_shell':
        if module := sys_modules.get(name):
            if name == 'sandbox_display' and module.held:
                begin_line()
            module.end_call()


def reseed():
    """Gives random numbers that are loaded another seed, in a copy of a machine."""
    for name in 'random', 'numpy.random':
        if module := sys_modules.get(name):
            module.seed()
    if module := sys_modules.get('_ssl'):
        module.RAND_bytes(1)
    if module := sys_modules.get('tempfile'):
        module._name_sequence = None


def draw_bars(module):
    """Has the progress bars that tqdm draws on a notebook's page be lines of text."""
    plain = sys_modules['tqdm.std']
    module.tqdm = module.tqdm_notebook = plain.tqdm
    module.trange = module.tnrange = plain.trange


class Finder:
    """Has a function called when the code has imported a certain module. It stands
    first in sys.meta_path and leaves all other modules alone."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        after = after_import.get(name)
        if after is None:
            return None
        spec = _frozen_importlib_external.PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            after(module)

        spec.loader.exec_module = exec_module
        return spec


def have_tasks(asyncio):
    """Gives the session its event loop, once code has imported asyncio."""
    global tasks
    tasks = load('sandbox_tasks')
    if running:
        tasks.begin()


def parse(text, filename):
    """The syntax tree of code, and the text that it is of."""
    # The prompt of IPython is an annotation to the compiler.
    if text.lstrip().startswith('In ['):
        text = load('sandbox_source').unpasted(text)
    try:
        return compile(text, filename, 'exec', ONLY_AST | TOP_LEVEL_AWAIT), text
    except SyntaxError as error:
        return load('sandbox_source').reread(text, error, lambda text: compile(text, filename, 'exec', ONLY_AST | TOP_LEVEL_AWAIT))


async def awaited(codes):
    """Runs code objects of which some await, in one coroutine."""
    value = None
    for code in codes:
        value = eval(code, main)
        if code.co_flags & CO_COROUTINE:
            value = await value
    return value


def run(source, filename):
    """Runs code as a cell of a notebook: a last expression's value is shown."""
    global future, running
    text = source.decode('utf-8').removeprefix('\ufeff')
    remember(filename, text)
    tree, meant = parse(text, filename)
    if meant != text:
        remember(filename, text := meant)
    body = tree.body
    last = None
    if body and isinstance(body[-1], _ast.Expr) and not text.rstrip().endswith(';'):
        last = _ast.Expression(body.pop().value)
    if module := sys_modules.get('sandbox_shell'):
        module.begin_call()
    module = sys_modules.get('IPython.core.interactiveshell')
    if module is not None and module.InteractiveShell.ast_node_interactivity == 'all':
        load('sandbox_shell').show_all(body)
    codes = []
    if body:
        codes.append(compile(tree, filename, 'exec', TOP_LEVEL_AWAIT | future))
        future |= codes[0].co_flags & CO_FUTURE_ANNOTATIONS
    if last is not None:
        codes.append(compile(last, filename, 'eval', TOP_LEVEL_AWAIT))
    value = None
    if any(code.co_flags & CO_COROUTINE for code in codes):
        value = load('sandbox_tasks').runner.run(awaited(codes))
    else:
        running = True
        if tasks is not None:
            tasks.begin()
        try:
            for code in codes:
                value = eval(code, main)
        finally:
            running = False
            if tasks is not None:
                tasks.end()
    # A value that a child of the code computed is not shown twice.
    if last is not None and getpid() == PID:
        sys.displayhook(value)


def call(source, filename):
    """Runs code and returns its exit status. Never raises, save an interrupt
    that comes while it returns."""
    status = 0
    try:
        try:
            run(source, filename)
        finally:
            if getpid() == PID:
                end_call()
    except SystemExit as error:
        status = status_of(error)
    except KeyboardInterrupt as error:
        status = 130
        report(error)
    except BaseException as error:
        status = 1
        report(error)
    return status


def guarded(source, filename):
    try:
        return call(source, filename)
    except BaseException:
        return 130


def attempt(step):
    """Runs a step of the end of a program, and reports its error, so that the next
    step runs in any case."""
    try:
        step()
    except BaseException as error:
        report(error)


def forget():
    """Releases the objects of the code, so that files are flushed and finalizers run."""
    for private in True, False:
        for name in list(main):
            if name != '__builtins__' and private == (name[:1] == '_' and name[:2] != '__'):
                main[name] = None
    gc.collect()


def feed(path):
    """Makes another file the code's stdin."""
    file = os.open(path, os.O_RDONLY)
    if file != 0:
        os.dup2(file, 0)
        close(file)
    raw = _io.FileIO(0, 'rb', closefd=False)
    raw.name = '<stdin>'
    old = sys.__stdin__
    sys.stdin = sys.__stdin__ = _io.TextIOWrapper(_io.BufferedReader(raw), old.encoding, old.errors)


def grow(path):
    """Adds a folder of programs to PATH, and the modules of its Python to those that can be
    imported: what is loaded stays."""
    os.environ['PATH'] = path + ':' + os.environ.get('PATH', '')
    program = os.path.realpath(path + '/python3')
    prefix = os.path.dirname(os.path.dirname(program))
    at = sys.path.index(MODULES[0]) if MODULES[0] in sys.path else len(sys.path)
    for folder in list(stdlib):
        # Distributions have their own names for site-packages.
        if folder.startswith(sys.prefix + '/') and folder.endswith('-packages'):
            folder = prefix + folder[len(sys.prefix):]
            if folder not in sys.path and os.path.isdir(folder):
                sys.path.insert(at, folder)


def stop(self, code=None):
    """Replaces exit and quit, which close stdin: later calls would lack it, and the
    next file that they open would get its descriptor."""
    raise SystemExit(code)


def end(nonce, status):
    """Ends a program as the interpreter does, but does not take the
    interpreter apart: that costs more than most code, and all of it is thrown
    away."""
    if tasks is not None:
        attempt(tasks.finish)
    threading = sys_modules.get('threading')
    if threading is not None:
        attempt(threading._shutdown)
    attempt(atexit._run_exitfuncs)
    flush()
    attempt(forget)
    flush()
    try:
        # The code may have put a file of its own at the channel's descriptor.
        if os.fstat(ASIDE).st_ino == CHANNEL:
            write(ASIDE, b'done %s %d\n' % (nonce, status))
            read(ASIDE, 1)  # freeing memory now would compete with the agent
    finally:
        leave(status)


def receive():
    if tasks is not None:
        tasks.turn(CONTROL)
    line = b''
    while not line.endswith(b'\n'):
        byte = read(CONTROL, 64)
        if not byte:
            leave(0)  # the agent has ended
        line += byte
    return line.split()


def loop():
    global alone
    handler = _signal.default_int_handler
    while True:
        word, nonce, number, size = receive()
        source = pread(CODE, int(size), 0)
        Buffer.last, Buffer.nonce = b'\n', nonce
        if word == b'last':
            alone = True
            os.dup2(CONTROL, ASIDE, False)
            close(CONTROL)
            close(CODE)
            set_handler(SIGINT, handler)
            gc.freeze()
            status = guarded(source, '<code>')
            if getpid() == PID:
                end(nonce, status)
            sys.exit(status)
        set_handler(SIGINT, handler)
        status = guarded(source, '<call %s>' % number.decode())
        while True:
            try:
                handler = _signal.getsignal(SIGINT)
                set_handler(SIGINT, ignore)
                break
            except BaseException:
                pass
        Buffer.nonce = None
        flush()
        if getpid() != PID:
            leave(status)  # a child that the code forked and let go on
        write(CONTROL, b'done %s %d\n' % (nonce, status))


os.set_inheritable(CONTROL, False)
os.set_inheritable(CODE, False)
set_handler(SIGINT, ignore)
if 'exit' in builtins.__dict__:
    type(builtins.exit).__call__ = stop
sys.argv = ['']
# -I leaves these folders out. The driver's imports are done, so they cannot change
# them.
sys.path[:0] = [''] + [p for p in os.environ.get('PYTHONPATH', '').split(':') if p]
# What belongs to this driver is found last, so that a library of the same name
# comes first.
sys.path += MODULES
stdlib += MODULES
os.environ.setdefault('MPLBACKEND', 'Agg')
# Lines leave at once: what a subprocess prints keeps its place among them,
# and a crash loses none.
raw = _io.FileIO(1, 'wb', closefd=False)
raw.name = '<stdout>'
STDOUT = Text(Buffer(raw), sys.stdout.encoding, sys.stdout.errors, line_buffering=True)
STDOUT._CHUNK_SIZE = PIECE
STDOUT.mode = 'w'
THREAD = get_ident()
ordered(os, '_exit', 'abort', 'execv', 'execve', 'kill', 'killpg', 'posix_spawn', 'posix_spawnp', 'system')
sys.stdout = sys.__stdout__ = STDOUT
sys.displayhook = show_value
builtins.display, builtins.get_ipython = display, get_ipython
if folder := os.environ.get('NIX_SANDBOX_TOOLS'):
    stdlib.append(os.path.dirname(folder) + '/surface/python')
    load('tools_later').install(load)
# What the agent calls in a copy is compiled before that.
sys_modules['sandbox_copy'] = copy = type(sys)('sandbox_copy')
copy.reseed, copy.feed, copy.grow, copy.load = reseed, feed, grow, load
# Nobody sends this interpreter numbers to slow it down but its own code.
sys.set_int_max_str_digits(0)
main['__file__'] = ROOT + '/main.py'
after_import = {
    'subprocess': lambda module: ordered(module, '_fork_exec'),
    'sandbox_display': lambda module: module.__dict__.update(workspace=ROOT, take_back_text=take_back),
    'asyncio': have_tasks,
    'inspect': lambda module: load('sandbox_source').install_inspect(module, sources),
    'multiprocessing.spawn': lambda module: load('sandbox_source').install(module, sources),
    'matplotlib': lambda module: load('sandbox_figures').install_matplotlib(),
    'matplotlib.figure': lambda module: load('sandbox_figures').install_figures(),
    'matplotlib.pyplot': lambda module: load('sandbox_figures').install_pyplot(),
    'PIL.Image': lambda module: load('sandbox_figures').install_images(),
    'tqdm.notebook': draw_bars,
}
sys.meta_path.insert(0, Finder)
# Python 3.13's linecache imports nothing: with it, tracebacks that the code
# formats itself show its lines too. An older one costs milliseconds and has
# to wait for the first error.
if sys.version_info >= (3, 13):
    load('linecache')
try:
    write(CONTROL, b'ready\n')
    loop()
except OSError:
    leave(70)  # the code has closed the control channel
