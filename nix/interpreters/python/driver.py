# Runs code in this interpreter for the agent. It imports only modules that the
# interpreter has loaded already: others could be shadowed, and would cost start-up
# time. The code may redefine any name (print, exit, sys.stdout, even len), so this
# file binds those that it uses before the code runs.

import _ast
import _signal
import atexit
import builtins
import gc
import os
import sys

BaseException, Exception, SystemExit, KeyboardInterrupt, OSError = (
    builtins.BaseException, builtins.Exception, builtins.SystemExit,
    builtins.KeyboardInterrupt, builtins.OSError)
compile, eval, exec, getattr, int, isinstance, len, str, type = (
    builtins.compile, builtins.eval, builtins.exec, builtins.getattr,
    builtins.int, builtins.isinstance, builtins.len, builtins.str,
    builtins.type)
close, getpid, leave, pread, read, write = (
    os.close, os.getpid, os._exit, os.pread, os.read, os.write)
set_handler = _signal.signal

CONTROL, CODE = 3, 4
# The control channel's descriptor while a program runs, which may expect that it
# gets the lowest descriptors.
ASIDE = 250
SIGINT = 2
# Flags of compile, as in Include/cpython/compile.h. Importing ast for them would
# cost a millisecond.
ONLY_AST, TOP_LEVEL_AWAIT = 0x400, 0x2000
CO_COROUTINE, CO_FUTURE_ANNOTATIONS = 0x80, 0x1000000  # as in Include/cpython/code.h
# Bounds of the sources that are kept for tracebacks: characters and calls.
KEEP_SOURCES, KEEP_CALLS = 4 << 20, 1000

ROOT = os.getcwd()
PID = getpid()
CHANNEL = os.fstat(CONTROL).st_ino
main = sys.modules['__main__'].__dict__
sys_modules = sys.modules
stdlib = list(sys.path)
sources = {}  # of the newest calls, the oldest first
kept = 0  # characters in them
shown = False  # linecache was told of all of them
runner = None
future = 0  # what calls have imported from __future__
figures = 0
shown_images = set()  # of outputs, when figures were saved last


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
    error.__traceback__ = tb
    try:
        traceback = load('traceback')
        load('linecache')
        register()
        text = ''.join(traceback.format_exception(type(error), error, tb))
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
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        try:
            stream.flush()
        except Exception:
            pass


def images(folder):
    """The images in a folder, with their times."""
    return {
        (entry.name, entry.stat(follow_symlinks=False).st_mtime_ns)
        for entry in os.scandir(folder) if entry.name.lower().endswith(('.png', '.jpg', '.jpeg'))}


def save_figures():
    """Saves the figures that the code left open, as a notebook shows them."""
    global figures, shown_images
    pyplot = sys_modules.get('matplotlib.pyplot')
    if pyplot is None:
        return
    numbers = pyplot.get_fignums()
    if not numbers:
        return
    folder = ROOT + '/outputs'
    os.makedirs(folder, exist_ok=True)
    its_own = not images(folder) <= shown_images
    for number in numbers:
        # A figure that pyplot.savefig has drawn is not stale until it changes.
        if its_own and not pyplot.figure(number).stale:
            continue
        while True:
            figures += 1
            path = '%s/figure-%d.png' % (folder, figures)
            if not os.path.lexists(path):
                break
        pyplot.figure(number).savefig(path, bbox_inches='tight')
    pyplot.close('all')
    shown_images = images(folder)


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
    global runner, future
    text = source.decode('utf-8').removeprefix('\ufeff')
    remember(filename, text)
    tree = compile(text, filename, 'exec', ONLY_AST | TOP_LEVEL_AWAIT)
    body = tree.body
    last = None
    if body and isinstance(body[-1], _ast.Expr) and not text.rstrip().endswith(';'):
        last = _ast.Expression(body.pop().value)
    codes = []
    if body:
        codes.append(compile(tree, filename, 'exec', TOP_LEVEL_AWAIT | future))
        future |= codes[0].co_flags & CO_FUTURE_ANNOTATIONS
    if last is not None:
        codes.append(compile(last, filename, 'eval', TOP_LEVEL_AWAIT))
    value = None
    for code in codes:
        if code.co_flags & CO_COROUTINE:
            if runner is None:
                runner = load('asyncio').Runner()
            value = runner.run(awaited(codes))
            break
    else:
        for code in codes:
            value = eval(code, main)
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
                save_figures()
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


def stop(self, code=None):
    """Replaces exit and quit, which close stdin: later calls would lack it, and the
    next file that they open would get its descriptor."""
    raise SystemExit(code)


def end(nonce, status):
    """Ends a program as the interpreter does, but without tearing the interpreter
    down, which takes longer than most code and changes nothing."""
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
    line = b''
    while not line.endswith(b'\n'):
        byte = read(CONTROL, 64)
        if not byte:
            leave(0)  # the agent has ended
        line += byte
    return line.split()


def loop():
    handler = _signal.default_int_handler
    while True:
        word, nonce, number, size = receive()
        source = pread(CODE, int(size), 0)
        if word == b'last':
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
os.environ.setdefault('MPLBACKEND', 'Agg')
# Flush each line: the output of subprocesses stays in order, and a crash loses no
# line.
sys.stdout.reconfigure(line_buffering=True)
# With linecache, tracebacks that the code formats itself show the code's lines too.
# Since Python 3.13 it imports nothing; an older one costs milliseconds and is loaded
# at the first error.
if sys.version_info >= (3, 13):
    load('linecache')
try:
    write(CONTROL, b'ready\n')
    loop()
except OSError:
    leave(70)  # the code has closed the control channel
