"""Shows values to a reader of text and images.

The driver loads this module when a value has more to show than its repr, when
code calls `display`, and when code imports IPython.display where there is no
IPython. The representations of a value are asked for in the order of their
worth to a language model: an image is a file below /workspace/outputs, which
the answer carries as an image; Markdown is text; HTML becomes text, its tables
aligned. A representation that is too large is passed over, one that fails is
reported in a line of standard error, and the repr is what remains.
"""

import base64
import os
import sys

# What one representation may have, in bytes or characters. A larger one is
# passed over.
MAX_IMAGE = 8 << 20
MAX_TEXT = 1 << 20
# What of an HTML text is read, in characters.
MAX_HTML = 256 << 10
# What is shown of why a representation failed, in characters.
MAX_REASON = 200

EXTENSIONS = {'image/png': 'png', 'image/jpeg': 'jpg', 'image/gif': 'gif', 'image/webp': 'webp', 'image/svg+xml': 'svg'}
# The methods of a value, in the order in which they are asked.
METHODS = (
    ('image/png', '_repr_png_'),
    ('image/jpeg', '_repr_jpeg_'),
    ('image/svg+xml', '_repr_svg_'),
    ('text/markdown', '_repr_markdown_'),
    ('text/html', '_repr_html_'),
)
ORDER = ('image/png', 'image/jpeg', 'image/gif', 'image/webp', 'image/svg+xml', 'text/markdown', 'text/html', 'text/plain')

workspace = '/workspace'  # unless the driver says otherwise
counter = 0
kept = None  # a list that takes images in place of the answer
drawn = []  # the files of this call that clear_output takes back
cleared = False  # whether it does when the next one comes
held = {}  # the displays of this call that may still change, by their ids


def outputs():
    """The folder whose new files an answer carries."""
    folder = workspace + '/outputs'
    os.makedirs(folder, exist_ok=True)
    return folder


def new_file(stem, extension):
    """A path below outputs that nothing has yet."""
    global counter
    folder = outputs()
    while True:
        counter += 1
        path = '%s/%s-%d.%s' % (folder, stem, counter, extension)
        if not os.path.lexists(path):
            return path


def new_drawing(stem, extension):
    """The same for an image that is shown, and not a file that code wrote."""
    if cleared:
        take_back()
    drawn.append(new_file(stem, extension))
    return drawn[-1]


def take_back():
    """Removes the images that this call has shown so far."""
    global cleared
    cleared = False
    for path in drawn:
        try:
            os.unlink(path)
        except OSError:
            pass
    drawn.clear()


def end_call():
    """Shows what could still change, and leaves all as it is."""
    global cleared
    last = list(held.values())
    held.clear()
    for values, options in last:
        display(*values, **options)
    cleared = False
    drawn.clear()


def write_image(data, kind, stem='image'):
    """Writes an image and says whether it did."""
    if isinstance(data, str):
        data = data.encode() if kind == 'image/svg+xml' else base64.b64decode(data)
    if not data or len(data) > MAX_IMAGE:
        return False
    if kept is not None:
        kept.append(Image(data))
        return True
    with open(new_drawing(stem, EXTENSIONS[kind]), 'wb') as file:
        file.write(data)
    return True


def has_default_repr(value):
    """Whether a value's repr says nothing but its type and address."""
    method = type(value).__repr__
    return method is object.__repr__ or getattr(method, '__qualname__', '') == 'object.__repr__'


def report(value, method, error):
    """Says that a representation failed, unless the method says, as IPython has
    it, that there is none."""
    if isinstance(error, NotImplementedError):
        return
    try:
        reason = str(error).partition('\n')[0][:MAX_REASON]
    except Exception:
        reason = 'its message cannot be shown'
    print('%s.%s failed: %s: %s' % (type(value).__name__, method, type(error).__name__, reason), file=sys.stderr)


def bundle_of(value):
    """The representations of a value by their MIME types. The methods of a
    class that is itself the value are not asked: they want an instance."""
    if isinstance(value, type):
        return {}
    bundle = {}
    method = getattr(value, '_repr_mimebundle_', None)
    if callable(method):
        try:
            found = method()
            found = found[0] if isinstance(found, tuple) else found
            bundle.update({kind: data for kind, data in (found or {}).items() if data is not None})
        except Exception as error:
            report(value, '_repr_mimebundle_', error)
    for kind, name in METHODS:
        if kind in bundle:
            continue
        method = getattr(value, name, None)
        if not callable(method):
            continue
        try:
            data = method()
        except Exception as error:
            report(value, name, error)
            continue
        if isinstance(data, tuple):  # with metadata, as IPython allows
            data = data[0]
        if data is not None:
            bundle[kind] = data
            if kind.startswith('image/'):
                break
    return bundle


def show_bundle(bundle, plain=None):
    """Shows the most useful representation of a bundle; says whether there was
    one. `plain` is the text to use instead of HTML, or None."""
    for kind in ORDER:
        data = bundle.get(kind)
        if data is None:
            continue
        try:
            if kind in EXTENSIONS:
                if write_image(data, kind):
                    return True
                continue
            if kind == 'text/html':
                text = plain if plain is not None else text_of_html(str(data))
            else:
                text = ''.join(data) if isinstance(data, list) else str(data)
        except Exception:
            continue
        if len(text) <= MAX_TEXT:
            print(text.rstrip('\n'))
            return True
    return False


def show(value):
    """Shows one value."""
    method = getattr(type(value), '_ipython_display_', None)
    if callable(method):
        try:
            method(value)
            return
        except NotImplementedError:
            pass  # as IPython has it: there is none
    figures = sys.modules.get('sandbox_figures')
    if figures is not None and figures.show_value(value):
        return
    bundle = bundle_of(value)
    # A text that the type wrote itself, as a DataFrame's aligned table, is
    # better than what HTML can be turned into.
    plain = None
    if 'text/html' in bundle and not has_default_repr(value):
        plain = str(bundle.get('text/plain') or repr(value))
        if plain.startswith('<') and plain.endswith('>'):
            plain = None
    if not show_bundle(bundle, plain):
        print(repr(value))


def display(*values, include=None, exclude=None, metadata=None, transient=None, display_id=None, raw=False, clear=False, **kwargs):
    """Shows values, as IPython's function of the same name does: if they have an id,
    when the call ends, as they are then."""
    if display_id is not None:
        handle = DisplayHandle(display_id if isinstance(display_id, str) else None)
        held[handle.display_id] = values, {'raw': raw}
        return handle
    for value in values:
        if raw and isinstance(value, dict):
            show_bundle(value)
        elif isinstance(value, str):
            print(repr(value))
        else:
            show(value)
    return None


class DisplayHandle:
    """What display(…, display_id=True) returns: an update takes the place of the
    value, and is shown as a new one if the call has ended."""

    def __init__(self, display_id=None):
        self.display_id = display_id or base64.b16encode(os.urandom(8)).decode().lower()

    def display(self, value, raw=False, **kwargs):
        held[self.display_id] = (value,), {'raw': raw}

    update = display


def publish_display_data(data, metadata=None, *, transient=None, **kwargs):
    """Shows a bundle of representations by their MIME types."""
    show_bundle(data)


def update_display(value, *, display_id, raw=False, **kwargs):
    held[display_id] = (value,), {'raw': raw}


def clear_output(wait=False):
    """Takes back what the call has shown and written, at once or when more comes."""
    global cleared
    cleared = True
    held.clear()
    take_back_text('\x1b[?2J' if wait else '\x1b[2J')
    if not wait:
        take_back()


class DisplayObject:
    """Content of a known kind, given as it is, by a file name or not at all."""

    kind = 'text/plain'
    binary = False

    def __init__(self, data=None, url=None, filename=None, metadata=None, **options):
        if filename is None and isinstance(data, str) and self.binary and os.path.exists(data):
            filename, data = data, None
        if url is None and isinstance(data, str) and data.startswith(('http://', 'https://')):
            url, data = data, None
        self.url, self.filename, self.metadata, self.options = url, filename, metadata or {}, options
        if data is None and filename is not None:
            with open(filename, 'rb' if self.binary else 'r') as file:
                data = file.read()
        self.data = data

    def __repr__(self):
        if self.data is None and self.url is not None:
            return '<%s at %s, which is not loaded>' % (type(self).__name__, self.url)
        return '<%s object>' % type(self).__name__

    def _repr_mimebundle_(self, include=None, exclude=None):
        return {self.kind: self.data} if self.data is not None else {}


class TextDisplayObject(DisplayObject):
    pass


class HTML(TextDisplayObject):
    kind = 'text/html'

    def _repr_html_(self):
        return self.data

    def __html__(self):
        return self.data


class Markdown(TextDisplayObject):
    kind = 'text/markdown'

    def _repr_markdown_(self):
        return self.data


class Latex(TextDisplayObject):
    pass


class Math(TextDisplayObject):
    pass


class Pretty(TextDisplayObject):
    pass


class Code(TextDisplayObject):
    pass


class Javascript(TextDisplayObject):
    def _repr_mimebundle_(self, include=None, exclude=None):
        return {'text/plain': '<JavaScript, which is not run here>'}


class Unseen(DisplayObject):
    """Sound, films and pages: an answer carries none of them."""

    def __init__(self, *args, **options):
        super().__init__()

    def _repr_mimebundle_(self, include=None, exclude=None):
        return {'text/plain': '<%s, which is not shown here>' % type(self).__name__}


class Audio(Unseen):
    pass


class Video(Unseen):
    pass


class IFrame(Unseen):
    pass


class YouTubeVideo(Unseen):
    pass


class SVG(DisplayObject):
    kind = 'image/svg+xml'

    def _repr_svg_(self):
        return self.data


class Image(DisplayObject):
    binary = True

    def __init__(self, data=None, url=None, filename=None, format=None, embed=None, **options):
        super().__init__(data, url, filename, **options)
        self.format = format
        if isinstance(self.data, str):
            raise FileNotFoundError('No such file or directory: %r' % self.data)

    def _repr_mimebundle_(self, include=None, exclude=None):
        kind = kind_of_image(self.data) if self.data is not None else None
        return {kind: self.data} if kind else {}


class JSON(DisplayObject):
    def __init__(self, data=None, url=None, filename=None, expanded=False, **options):
        super().__init__(None, url, filename, **options)
        import json
        if self.data is not None:
            data = self.data
        self.data = json.loads(data) if isinstance(data, str) else data

    def _repr_mimebundle_(self, include=None, exclude=None):
        import json
        return {'text/plain': json.dumps(self.data, indent=2, ensure_ascii=False, default=str)}


class FileLink(DisplayObject):
    def __init__(self, path, *args, **options):
        super().__init__()
        self.path = path

    def __repr__(self):
        return str(self.path)


class FileLinks(FileLink):
    """The files below a folder, a line each."""

    def __repr__(self):
        return '\n'.join(sorted(os.path.join(folder, name) for folder, _, names in os.walk(self.path) for name in names))


def kind_of_image(data):
    """The MIME type of an image by its first bytes, or None."""
    if isinstance(data, str):
        data = data.encode()
    if data.startswith(b'\x89PNG\r\n\x1a\n'):
        return 'image/png'
    if data.startswith(b'\xff\xd8\xff'):
        return 'image/jpeg'
    if data.startswith((b'GIF87a', b'GIF89a')):
        return 'image/gif'
    if data[:4] == b'RIFF' and data[8:12] == b'WEBP':
        return 'image/webp'
    if b'<svg' in data[:1024]:
        return 'image/svg+xml'
    return None


def text_of_html(html):
    """HTML as text: tables aligned, blocks and items on lines of their own,
    links followed by their addresses."""
    from html.parser import HTMLParser

    hidden = {'script', 'style', 'head', 'template'}
    block = {'p', 'div', 'section', 'article', 'header', 'footer', 'ul', 'ol', 'dl', 'dt', 'dd', 'pre', 'blockquote',
             'h1', 'h2', 'h3', 'h4', 'h5', 'h6', 'hr', 'figure', 'figcaption', 'details', 'summary', 'form', 'caption'}

    class Reader(HTMLParser):
        def __init__(self):
            super().__init__(convert_charrefs=True)
            self.lines = ['']
            self.skipped = 0
            self.preformatted = 0
            self.kept = set()  # numbers of lines whose first spaces count
            self.rows = None  # of the innermost table
            self.outer = []  # the rows of the tables around it, with their cells
            self.cell = None
            self.links = []

        def write(self, text):
            if self.cell is not None:
                self.cell.append(text)
                return
            first, *rest = text.split('\n')
            self.lines[-1] += first
            self.lines.extend(rest)

        def new_line(self):
            if self.cell is not None:
                self.cell.append(' ')
            elif self.lines[-1].strip():
                self.lines.append('')

        def handle_starttag(self, tag, attributes):
            if tag in hidden:
                self.skipped += 1
            if tag == 'table':
                self.new_line()
                self.outer.append((self.rows, self.cell))
                self.rows, self.cell = [], None
            elif tag == 'tr' and self.rows is not None:
                self.rows.append([])
            elif tag in ('td', 'th') and self.rows is not None:
                if not self.rows:
                    self.rows.append([])
                self.cell = []
                self.rows[-1].append(self.cell)
                span = dict(attributes).get('colspan') or '1'
                for _ in range(min(int(span), 100) - 1 if span.isdigit() else 0):
                    self.rows[-1].append([])
            elif tag == 'br':
                self.write(' ' if self.cell is not None else '\n')
            elif tag == 'li':
                self.new_line()
                self.write('- ')
            elif tag == 'a':
                self.links.append(dict(attributes).get('href') or '')
            elif tag == 'img':
                self.write('[image%s]' % (': ' + dict(attributes)['alt'] if dict(attributes).get('alt') else ''))
            elif tag in block:
                self.new_line()
            if tag == 'pre':
                self.preformatted += 1

        def handle_endtag(self, tag):
            if tag in hidden:
                self.skipped = max(0, self.skipped - 1)
            if tag == 'table' and self.outer:
                rows = aligned([[' '.join(''.join(cell).split()) for cell in row] for row in self.rows])
                self.rows, self.cell = self.outer.pop()
                first = len(self.lines) - 1
                self.write('\n'.join(rows) if self.cell is None else ' '.join(rows))
                if self.cell is None:
                    self.kept.update(range(first, len(self.lines)))
                self.new_line()
            elif tag in ('td', 'th'):
                self.cell = None
            elif tag == 'a' and self.links:
                address = self.links.pop()
                if address.startswith(('http://', 'https://')):
                    self.write(' (%s)' % address)
            elif tag in block or tag == 'li':
                self.new_line()
            if tag == 'pre':
                self.preformatted = max(0, self.preformatted - 1)

        def handle_data(self, data):
            if self.skipped:
                return
            if self.preformatted:
                first = len(self.lines) - 1
                self.write(data)
                self.kept.update(range(first, len(self.lines)))
                return
            if self.rows is not None and self.cell is None:
                return
            words = ' '.join(data.split())
            if words:
                self.write((' ' if data[0].isspace() else '') + words + (' ' if data[-1].isspace() else ''))
            elif data and self.cell is None and self.lines[-1]:
                self.write(' ')

    reader = Reader()
    reader.feed(html[:MAX_HTML])
    reader.close()
    while reader.outer:  # a table whose end is missing, or was cut off
        reader.handle_endtag('table')
    text = '\n'.join(line.rstrip() if number in reader.kept else line.strip() for number, line in enumerate(reader.lines))
    while '\n\n\n' in text:
        text = text.replace('\n\n\n', '\n\n')
    if len(html) > MAX_HTML:
        text += '\n… (%d of %d characters of HTML are left out)' % (len(html) - MAX_HTML, len(html))
    return text.strip('\n')


def aligned(rows):
    """Rows of cells as lines whose columns are aligned; numbers to the right."""
    rows = [row for row in rows if any(row)]
    if not rows:
        return []
    count = max(len(row) for row in rows)
    rows = [row + [''] * (count - len(row)) for row in rows]
    widths = [max(len(row[i]) for row in rows) for i in range(count)]
    right = [all(is_number(row[i]) for row in rows[1:] if row[i]) and any(row[i] for row in rows[1:]) for i in range(count)]
    return ['  '.join(cell.rjust(width) if to_right else cell.ljust(width)
                      for cell, width, to_right in zip(row, widths, right)).rstrip() for row in rows]


def is_number(text):
    return text.strip('-+€$£%').replace(',', '').replace('.', '', 1).replace('e-', '').replace('e+', '').isdigit() or text in ('nan', 'NaN', 'inf', '-inf')
