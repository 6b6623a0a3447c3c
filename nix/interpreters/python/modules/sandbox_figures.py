"""Shows figures of matplotlib and images of Pillow: each once, as it was when it
was shown.

The driver calls `install` for each of the two libraries when code has imported
it. A figure is shown when code calls `show`, when it is the value of a call's
last expression, when `savefig` writes it as an image anywhere below the
workspace, and at the end of a call that leaves it open. What is shown is a file
below /workspace/outputs.
"""

import functools
import io
import os
import re
import sys
import weakref

import sandbox_display
from sandbox_display import new_drawing, new_file, outputs

IMAGES = ('.png', '.jpg', '.jpeg', '.gif', '.webp', '.svg')

# Figures that the answer of this call carries already. One that has been changed
# since is stale, which matplotlib keeps account of.
shown = weakref.WeakSet()

# Files that the answer of this call carries already, because code wrote them.
published = set()

links = {}  # of files elsewhere in the workspace, below outputs

# Files and folders that tempfile made: code reads them itself.
TEMPORARY = re.compile(r'tmp[a-z0-9_]{8}(?:[/.]|$)')


def is_image(path):
    return path.lower().endswith(IMAGES)


def publish(path):
    """Has the answer carry an image that code wrote somewhere below the workspace:
    a hard link to it appears below outputs. Says whether the answer will carry
    it."""
    path = os.path.realpath(path)
    folder = os.path.realpath(outputs())
    if not is_image(path) or not path.startswith(os.path.realpath(sandbox_display.workspace) + '/') or not os.path.isfile(path):
        return False
    if path.startswith(folder + '/'):
        published.add(path)
        return True
    tempfile = sys.modules.get('tempfile')
    if tempfile is not None and TEMPORARY.match(os.path.relpath(path, os.path.realpath(tempfile.gettempdir()))):
        return False
    try:
        # A file that was written again in place has its link already.
        if path in links and os.path.samefile(links[path], path):
            published.add(path)
            return True
        target = os.path.join(folder, os.path.basename(path))
        if os.path.lexists(target):
            stem, extension = os.path.splitext(os.path.basename(path))
            target = new_file(stem, extension[1:])
        os.link(path, target)
    except OSError:
        return False
    links[path] = target
    published.add(path)
    return True


def show_figure(figure):
    """Shows a figure unless it was shown as it is now."""
    if figure in shown and not figure.stale:
        return
    if sandbox_display.kept is None:
        save(figure, new_drawing('figure', 'png'), bbox_inches='tight')
    else:
        save(figure, data := io.BytesIO(), format='png', bbox_inches='tight')
        sandbox_display.write_image(data.getvalue(), 'image/png')
    # A figure that a savefig layout has drawn anew is not another one.
    figure.stale = False
    shown.add(figure)


def show_open(pyplot):
    """Shows every open figure that has something in it, in the order of their
    numbers, and closes them."""
    for number in pyplot.get_fignums():
        figure = pyplot.figure(number)
        if len(figure.get_children()) > 1:  # the first is the background
            show_figure(figure)
    pyplot.close('all')


def end_call():
    """Shows the figures that a call has left open. The next call may show the same
    ones again."""
    pyplot = sys.modules.get('matplotlib.pyplot')
    if pyplot is not None and pyplot.get_fignums():
        show_open(pyplot)
    for path, link in list(links.items()):
        try:
            # A frame or a draft that code has deleted since. One that it has moved has a second name.
            if not os.path.lexists(path) and os.stat(link).st_nlink == 1:
                os.unlink(link)
                del links[path]
        except OSError:
            del links[path]
    shown.clear()
    published.clear()


def show_value(value):
    """Shows a value that is a figure or part of one, or an image of Pillow. Says
    whether the answer carries it."""
    if isinstance(value, sandbox_display.Image) and value.filename is not None:
        return os.path.realpath(value.filename) in published
    kind = type(value).__module__
    if kind.startswith('matplotlib.'):
        module = sys.modules.get('matplotlib.figure')
        if module is not None and isinstance(value, module.Figure):
            show_figure(value)
            return True
    if kind.startswith('PIL.'):
        module = sys.modules.get('PIL.Image')
        if module is not None and isinstance(value, module.Image):
            show_image(value)
            return True
    return False


def show_image(image):
    """Writes an image of Pillow below outputs."""
    if image.mode not in ('1', 'L', 'LA', 'I', 'P', 'RGB', 'RGBA'):
        image = image.convert('RGB')
    if sandbox_display.kept is None:
        write(image, new_drawing('image', 'png'))
    else:
        write(image, data := io.BytesIO(), 'png')
        sandbox_display.write_image(data.getvalue(), 'image/png')


save = write = None  # the libraries' own functions


# Backends that draw into files. All others need a screen, or a notebook.
FILES = {'agg', 'cairo', 'pdf', 'pgf', 'ps', 'svg', 'template'}


def without_screen(choose):
    """Makes a function that chooses a backend choose one that needs no screen: its
    figures are shown all the same."""

    @functools.wraps(choose)
    def chosen(backend, *args, **kwargs):
        return choose(backend if str(backend).lower() in FILES else 'agg', *args, **kwargs)

    return chosen


def install_matplotlib():
    matplotlib = sys.modules['matplotlib']
    matplotlib.use = without_screen(matplotlib.use)


def install_figures():
    """Takes the place of the parts of matplotlib that show and save figures."""
    global save
    from matplotlib.figure import Figure
    if save is not None:
        return
    save = Figure.savefig

    @functools.wraps(save)
    def savefig(self, fname, *args, **kwargs):
        result = save(self, fname, *args, **kwargs)
        try:
            path = os.fspath(fname)
            if isinstance(path, str):
                if not os.path.splitext(path)[1]:
                    path += '.png'
                if publish(path):
                    # The figure's own method leaves it stale, unlike pyplot's.
                    self.stale = False
                    shown.add(self)
        except TypeError:
            pass  # a file that is open already
        return result

    @functools.wraps(Figure.show)
    def show(self, warn=True):
        show_figure(self)

    Figure.savefig, Figure.show = savefig, show


def install_pyplot():
    pyplot = sys.modules['matplotlib.pyplot']

    @functools.wraps(pyplot.show)
    def show(*args, **kwargs):
        show_open(pyplot)

    pyplot.show, pyplot.switch_backend = show, without_screen(pyplot.switch_backend)


def install_images():
    """Takes the place of the parts of Pillow that show and save images."""
    global write
    from PIL.Image import Image
    if write is not None:
        return
    write = Image.save

    @functools.wraps(write)
    def image_save(self, fp, format=None, **params):
        result = write(self, fp, format, **params)
        try:
            path = os.fspath(fp)
            if isinstance(path, str):
                publish(path)
        except TypeError:
            pass
        return result

    @functools.wraps(Image.show)
    def image_show(self, title=None):
        show_image(self)

    Image.save, Image.show = image_save, image_show
