"""Formats an uncaught error for a reader who pays for each line.

The frames of the code and of its own files stay as the interpreter prints them.
Those of libraries are folded into one line with their number. Errors that began and
ended inside libraries, before the one that reached the code, are named in that line.

Code gets everything back by the interpreter's own means: `traceback.print_last()` in
a session, and `sys.tracebacklimit`, which switches folding off. A traceback that code
formats itself is not touched.
"""

import os
import re
import sys
import traceback

# Where the interpreter's own modules lie.
LIBRARY = os.path.dirname(os.__file__) + os.sep
DRIVER = os.path.dirname(__file__) + os.sep
PACKAGES = re.compile(r'.*/(?:site|dist)-packages/')
STORE = '/nix/store/'
# What a message shows of a path in the store: the module of a library, and otherwise
# the name of the package.
MODULE = re.compile(r'/nix/store/[0-9a-z]{32}-[^/\s]+/lib/python3[.\d]*/(?:(?:site|dist)-packages/)?')
HASH = re.compile(r'/nix/store/[0-9a-z]{32}-')
# Bounds of what a folded line names: libraries, errors, and characters of an error.
MOST_NAMES, MOST_ERRORS, MOST_TEXT = 4, 4, 200
# How many alternations between the code and libraries are shown, from each end of a
# traceback: a recursion through a library has a thousand.
MOST_RUNS = 6


def library_of(filename):
    """The name of the library that a file belongs to, or '' for a file of the code."""
    if filename.startswith('<'):
        # A module that the interpreter has frozen, or a function that NumPy made.
        return filename[1:-1].split()[-1].split('.')[0] if filename.startswith(('<frozen ', '<__array')) else ''
    found = PACKAGES.match(filename)
    if found:
        rest = filename[found.end():]
    elif filename.startswith(LIBRARY):
        rest = filename[len(LIBRARY):]
    elif filename.startswith(STORE):
        rest = filename[len(STORE):].partition('-')[2]
    elif not filename.startswith('/') and not os.path.exists(filename):
        rest = filename  # the source of a compiled module, which is not there
    else:
        return ''
    name = rest.split('/')[0]
    return name.partition('.')[0] if '/' not in rest else name


class Folded(traceback.StackSummary):
    """A stack whose frames of libraries are one line."""

    end = ''  # what the last folded line has to add

    def runs(self):
        """Lists of frames that belong together, each with the libraries' names, which
        are empty for the code's own."""
        found = []
        for frame in self:
            if frame.filename.startswith(DRIVER):
                continue
            name = library_of(frame.filename)
            if not found or bool(found[-1][1]) != bool(name):
                found.append(([], []))
            found[-1][0].append(frame)
            if name and name not in found[-1][1]:
                found[-1][1].append(name)
        return found

    def format(self, **options):
        runs = self.runs()
        if len(runs) > 2 * MOST_RUNS:
            middle = runs[MOST_RUNS:-MOST_RUNS]
            names = list(dict.fromkeys(name for _, names in middle for name in names))
            runs[MOST_RUNS:-MOST_RUNS] = [([frame for frames, _ in middle for frame in frames], ['this code', *names])]
        last = max((number for number, (_, names) in enumerate(runs) if names), default=None)
        lines = []
        for number, (frames, names) in enumerate(runs):
            if names:
                lines.append(folded(len(frames), names, self.end if number == last else ''))
            else:
                lines.extend(traceback.StackSummary.from_list(frames).format(**options))
        if last is None and self.end:
            lines.append('  [%s]\n' % self.end.lstrip(',; '))
        return lines


def folded(count, names, end):
    more = ', …' if len(names) > MOST_NAMES else ''
    return '  [%d frame%s of %s%s%s]\n' % (count, 's' if count > 1 else '', ', '.join(names[:MOST_NAMES]), more, end)


def has_own(summary):
    """Whether a frame of the code is in an error's stack. Code that cannot be parsed
    has none, and is the code's all the same."""
    return not summary.stack or any(not library_of(frame.filename) for frame in summary.stack)


def before(summary):
    """The error that was being handled, or that caused this one."""
    return summary.__cause__ or (None if summary.__suppress_context__ else summary.__context__)


def message(summary):
    """The last lines of an error, without what a SyntaxError shows of its file."""
    return ''.join(summary.format_exception_only()).rstrip('\n')


def brief(summary, later):
    """An error in a few words: its type alone, if a later error repeats its message."""
    kind, _, text = message(summary).partition('\n')[0].partition(': ')
    if text.strip('<>\'"') in later:
        return kind.rpartition('.')[2][:MOST_TEXT]
    return (kind + ': ' + text)[:MOST_TEXT]


def shorten(text):
    return HASH.sub(STORE + '…-', MODULE.sub('', text))


def fold(summary, hint):
    """Folds the stacks of an error and of those before it. `hint` is how to see all of
    the frames; the newest folded line says it."""
    later = message(summary)
    while summary is not None:
        skipped = []
        earlier = before(summary)
        while earlier is not None and earlier.exceptions is None and not has_own(earlier):
            skipped.append(earlier)
            earlier = before(earlier)
        if skipped:
            names = list(dict.fromkeys(brief(error, later) for error in reversed(skipped)))
            after = ', after %s%s' % ('…, ' if len(names) > MOST_ERRORS else '', ', '.join(names[-MOST_ERRORS:]))
            # The errors are dropped from the chain, and what came before them stays.
            if summary.__cause__ is not None:
                summary.__cause__ = earlier
            summary.__context__ = earlier
        else:
            after = ''
        for inner in summary.exceptions or ():
            hint = fold(inner, hint)
        if summary.stack and has_own(summary):
            stack = Folded(summary.stack)
            if after or any(names for _, names in stack.runs()):
                stack.end, hint = after + hint, ''
            summary.stack = stack
        later += message(summary)
        summary = earlier
    return hint


def text_of(error, tb, hint):
    """An uncaught error as text."""
    summary = traceback.TracebackException(type(error), error, tb, compact=True)
    if getattr(sys, 'tracebacklimit', None) is None:
        fold(summary, hint)
        return shorten(''.join(summary.format()))
    return ''.join(summary.format())


def remember(error):
    """Keeps an error for traceback.print_last, without what its functions had in their
    variables, which may be large."""
    seen = set()
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
    sys.last_exc = error
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__
