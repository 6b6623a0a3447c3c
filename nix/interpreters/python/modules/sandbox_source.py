"""Reads code as it is meant, and finds in it what other processes need.

The driver loads this module when code cannot be compiled as it was sent, and when
code has imported the part of multiprocessing that starts processes anew.
"""

import ast
import functools
import os

# How many lines of a notebook cell are rewritten.
MOST_LINES = 200


def unpasted(text):
    """Returns code without what surrounded it where it was copied: a Markdown
    fence, prompts with the output between them, an indentation of all lines. Each
    line keeps its number."""
    lines = text.split('\n')
    written = [number for number, line in enumerate(lines) if line.strip()]
    if not written:
        return text
    first, last = written[0], written[-1]
    if lines[first].lstrip().startswith('```'):
        lines[first] = ''
    if lines[last].strip() == '```':
        lines[last] = ''
    # In code that does not begin with a prompt, one is an example in a docstring.
    begin = next((line.lstrip() for line in lines if line.strip()), '')
    if begin.startswith('>>> '):
        lines = without_prompts(lines, '>>> ', '... ', lambda line: line[4:])
    elif begin.startswith('In ['):
        lines = without_prompts(lines, 'In [', '...: ', lambda line: line.partition(']: ')[2])
    indent = min((len(line) - len(line.lstrip()) for line in lines if line.strip()), default=0)
    return '\n'.join(line[indent:] for line in lines)


def reread(text, error, parse):
    """Reads code that cannot be parsed as it was sent: without what surrounds it, or
    with its notebook lines as Python. Returns what `parse` makes of it and the text, or
    raises the SyntaxError of the code as it was sent."""
    first = error
    meant = unpasted(text)
    try:
        if meant != text:
            return parse(meant), meant
    except SyntaxError as other:
        error = other
    if '!' in meant or '%' in meant or '?' in meant:
        # Each attempt repairs one line.
        for _ in range(min(meant.count('\n') + 1, MOST_LINES)):
            import sandbox_shell
            meant = sandbox_shell.translate(meant, error)
            if meant is None:
                break
            try:
                return parse(meant), meant
            except SyntaxError as other:
                error = other
    raise first from None


def without_prompts(lines, prompt, more, strip):
    """Keeps the lines with a prompt and those that go on with one; others are
    output."""
    kept, inside = [], False
    for line in lines:
        line = line.lstrip()
        if line.startswith(prompt):
            kept.append(strip(line))
            inside = True
        elif inside and line.startswith(more.rstrip()):
            kept.append(line[len(more):])
        else:
            kept.append('')
            inside = False
    return kept


def defines(node):
    """Whether a statement defines something and has no other effect."""
    if isinstance(node, (ast.Assign, ast.AnnAssign)):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return (node.value is not None and all(isinstance(target, ast.Name) for target in targets)
                and not any(isinstance(part, (ast.Call, ast.Await, ast.NamedExpr)) for part in ast.walk(node.value)))
    if isinstance(node, ast.Try):
        return all(isinstance(part, (ast.Import, ast.ImportFrom)) for part in node.body)
    return isinstance(node, (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))


def definitions(sources):
    """Returns a module of the imports, functions, classes and plain values in
    sources. Everything else would have its effects again."""
    kept = []
    for source in sources:
        try:
            body = ast.parse(source).body
        except SyntaxError:
            continue
        for node in body:
            if defines(node):
                # What a statement needs may be gone by now; the others do without.
                kept.append('try:\n    %s\nexcept Exception:\n    pass\n' % ast.unparse(node).replace('\n', '\n    '))
    return ''.join(kept)


def install_inspect(inspect, sources):
    """Has inspect.getsource find the classes of the code. By its own rule they are in the
    program's file, and there is none."""
    getfile = inspect.getfile

    def find(value):
        if isinstance(value, type) and value.__module__ == '__main__':
            for part in vars(value).values():
                code = getattr(getattr(part, '__func__', part), '__code__', None)
                if code is not None and code.co_filename in sources and code.co_qualname.startswith(value.__qualname__ + '.'):
                    return code.co_filename
            line = vars(value).get('__firstlineno__', 0)
            for name in reversed(sources):
                lines = sources[name].split('\n', line)[line - 1:]
                if line and lines and lines[0].lstrip().startswith(('class ' + value.__name__, '@')):
                    return name
        return getfile(value)

    inspect.getfile = functools.wraps(getfile)(find)


def install(spawn, sources):
    """Has processes that multiprocessing starts anew find what the code defined. By
    its own rule such a process runs the program's file, and there is none."""
    prepare = spawn.get_preparation_data

    def get_preparation_data(name):
        data = prepare(name)
        if not os.path.exists(data.get('init_main_from_path') or ''):
            import tempfile
            path = tempfile.mkdtemp(prefix='main-') + '/main.py'
            with open(path, 'w') as file:
                file.write(definitions(list(sources.values())))
            data['init_main_from_path'] = path
        return data

    spawn.get_preparation_data = get_preparation_data
