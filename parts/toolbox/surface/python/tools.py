"""Tools that this code can call. They run outside of the sandbox; results are data.

    tools.SERVER.TOOL(name=value)     calls a tool; one dict of arguments works too
    help(tools.SERVER.TOOL)           its signature, what it does, and its result
    tools.search("words")             signatures of the tools whose text has these words
    tools.map(tools.SERVER.TOOL, [{...}, ...], at_once=8)   results in order
    await atools.SERVER.TOOL(...)     the same for asyncio (atools = tools.atools)

A result is the tool's structured data if it has some, and the text alone if that only wraps
it; otherwise its text, parsed if that is a JSON object or array; otherwise a Content with
.text, .images and .files. Errors are
ToolError, with ToolDenied and ToolTimeout below it.
"""

import json as _json
import os as _os
import socket as _socket
import struct as _struct
import sys as _sys
import threading as _threading

__all__ = ['ToolError', 'ToolDenied', 'ToolTimeout', 'Content', 'File', 'atools', 'map', 'search']

_SOCKET = '\0nix-sandbox-tools'
_FOLDER = '/tmp/tools'  # of images and other bytes
_local = _threading.local()
_lock = _threading.Lock()
_known = None
_files = 0


class ToolError(Exception):
    """A tool, or its server, failed. code is error, denied, usage, timeout, cancelled or
    unavailable; content has the tool's own answer if there is one."""

    def __init__(self, message, server='', tool='', code='error', content=None):
        super().__init__(message)
        self.server, self.tool, self.code, self.content = server, tool, code, content


class ToolDenied(ToolError):
    """The call is not allowed."""


class ToolTimeout(ToolError):
    """The tool did not answer in time; it may have done its work."""


class File:
    """Bytes that a tool answered with, in a file."""

    def __init__(self, path, mime_type):
        self.path, self.mime_type = path, mime_type

    def show(self):
        """Has the answer of this call show the image."""
        _os.makedirs('/workspace/outputs', exist_ok=True)
        target = '/workspace/outputs/' + _os.path.basename(self.path)
        self.save(target)
        return target

    def save(self, path):
        """Copies it to a path."""
        with open(self.path, 'rb') as source, open(path, 'wb') as target:
            target.write(source.read())

    def __repr__(self):
        return '<%s %s>' % (self.mime_type or 'file', self.path)


class Content:
    """A result that is more than data or a text."""

    def __init__(self, raw):
        self.raw, self.images, self.files, self.links = raw, [], [], []
        texts = []
        for item in raw.get('content') or []:
            kind = item.get('type')
            if kind == 'text':
                texts.append(item.get('text', ''))
            elif kind in ('image', 'audio'):
                (self.images if kind == 'image' else self.files).append(_store(item.get('data', ''), item.get('mimeType', '')))
            elif kind == 'resource':
                resource = item.get('resource') or {}
                if 'blob' in resource:
                    self.files.append(_store(resource['blob'], resource.get('mimeType', '')))
                else:
                    texts.append(resource.get('text', ''))
            elif kind == 'resource_link':
                self.links.append(item)
        self.text = '\n'.join(texts)

    def __repr__(self):
        parts = [repr(self.text)] if self.text else []
        return '<Content %s>' % ' '.join(parts + [repr(one) for one in self.images + self.files])


def _store(data, mime_type):
    """Writes bytes to a new file."""
    global _files
    import base64
    import mimetypes
    _os.makedirs(_FOLDER, exist_ok=True)
    extension = mimetypes.guess_extension(mime_type or '') or '.bin'
    with _lock:
        _files += 1
        path = '%s/%d-%d%s' % (_FOLDER, _os.getpid(), _files, extension)
    with open(path, 'wb') as file:
        file.write(base64.b64decode(data))
    return File(path, mime_type)


def _catalog():
    global _known
    if _known is None:
        with open(_os.environ.get('NIX_SANDBOX_TOOLS', '/tools') + '/catalog.json') as file:
            _known = _json.load(file)
    return _known


def _connection():
    """A connection of this thread and process."""
    pid = _os.getpid()
    if getattr(_local, 'pid', None) != pid:
        connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
        try:
            connection.connect(_SOCKET)
        except OSError:
            connection.close()
            raise ToolError('tools are reached while a call of run is going on, and not from here', code='unavailable') from None
        _local.pid, _local.connection = pid, connection
    return _local.connection


def _receive(connection, size):
    data = bytearray(size)
    view, have = memoryview(data), 0
    while have < size:
        count = connection.recv_into(view[have:])
        if count == 0:
            raise ToolError('the connection to the tools has ended', code='unavailable')
        have += count
    return data


def _ask(server, tool, arguments):
    """Calls a tool, and returns its result as it came."""
    try:
        question = _json.dumps({'server': server, 'tool': tool, 'arguments': arguments}).encode()
    except (TypeError, ValueError) as error:
        raise ToolError('arguments are JSON: %s' % error, server, tool, 'usage') from None
    connection = _connection()
    try:
        connection.sendall(_struct.pack('>I', len(question)) + question)
        answer = _json.loads(_receive(connection, *_struct.unpack('>I', _receive(connection, 4))))
    except BaseException as error:
        # An answer that is on its way belongs to nothing any more.
        connection.close()
        _local.pid = None
        if isinstance(error, OSError):
            raise ToolError('the connection to the tools has ended', server, tool, 'unavailable') from None
        raise
    if 'error' in answer:
        failure = answer['error']
        message, code = failure['message'], failure['kind']
        if failure.get('near'):
            message += '\n  ' + '\n  '.join('tools.' + one for one in failure['near'])
        kind = {'denied': ToolDenied, 'timeout': ToolTimeout}.get(code, ToolError)
        raise kind(message, server, tool, code)
    result = answer['result']
    if result.get('isError'):
        content = Content(result)
        raise ToolError('%s.%s: %s' % (server, tool, content.text or 'it failed'), server, tool, 'error', content)
    return result


def _is(only, text):
    """Whether a text is this text, or this number, boolean or null as JSON: the same in each language."""
    if isinstance(only, str):
        return only == text
    try:
        read = _json.loads(text)
    except (ValueError, RecursionError):
        return False
    if only is None or isinstance(only, bool) or isinstance(read, bool):
        return read is only
    return isinstance(only, (int, float)) and read == only


def _value(result):
    """What code wants of a result."""
    content = result.get('content') or []
    is_text = bool(content) and all(item.get('type') == 'text' for item in content)
    text = '\n'.join(item.get('text', '') for item in content) if is_text else None
    if 'structuredContent' in result:
        data = result['structuredContent']
        if is_text and isinstance(data, dict) and len(data) == 1:
            # Many servers wrap a text or a number, because structured data was an object once.
            (only,) = data.values()
            if _is(only, text):
                return only
        return data
    if is_text:
        if len(content) == 1 and text.lstrip()[:1] in ('{', '['):
            try:
                return _json.loads(text)
            except ValueError:
                pass
        return text
    return Content(result) if content else None


class Tool:
    """A tool; call it with its arguments by name, or with one dict of them."""

    def __init__(self, server, name):
        self._server, self._name = server, name
        known = _catalog().get(server, {}).get(name, {})
        self.__name__ = self.__qualname__ = name
        self.__doc__ = 'tools.%s.%s' % (server, known.get('signature', name + '(...)'))
        if known.get('description'):
            self.__doc__ += '\n\n' + known['description']
        if 'outputSchema' in known:
            self.__doc__ += '\n\nresult: ' + _json.dumps(known['outputSchema'])

    def _arguments(self, given, named):
        if len(given) > 1 or given and (named or not isinstance(given[0], dict)):
            raise ToolError('arguments go by name, or as one dict:\n  ' + self.__doc__.split('\n')[0], self._server, self._name, 'usage')
        return given[0] if given else named

    def raw(self, *given, **named):
        """Calls the tool, and returns its result as the server sent it."""
        return _ask(self._server, self._name, self._arguments(given, named))

    def __call__(self, *given, **named):
        return _value(self.raw(*given, **named))

    def __repr__(self):
        return self.__doc__


class _AsyncTool(Tool):
    async def __call__(self, *given, **named):
        import asyncio
        return await asyncio.to_thread(Tool.__call__, self, *given, **named)


class Server:
    """The tools of a server."""

    def __init__(self, name, kind=Tool):
        self._name, self._kind = name, kind
        self.__doc__ = '\n'.join('tools.%s.%s' % (name, tool['signature']) for tool in _catalog()[name].values())

    def __getitem__(self, name):
        return self._kind(self._name, name)

    def __getattr__(self, name):
        if name.startswith('__'):
            raise AttributeError(name)
        return self[name]  # the gate says what there is

    def __dir__(self):
        return list(_catalog()[self._name])

    def __repr__(self):
        return self.__doc__


class _Async:
    """tools for asyncio."""

    def __getattr__(self, name):
        if name in _catalog():
            return Server(name, _AsyncTool)
        raise AttributeError(name)


atools = _Async()


def search(words=''):
    """The signatures of the tools whose name or description has all of these words."""
    words = words.lower().split()
    return ['tools.%s.%s' % (server, tool['signature']) for server, own in _catalog().items() for name, tool in own.items()
            if all(word in (server + ' ' + name + ' ' + tool['description']).lower() for word in words)]


def map(tool, arguments, at_once=8):
    """Calls a tool, or any function of one argument, for each of these; the results are in order."""
    from concurrent.futures import ThreadPoolExecutor
    with ThreadPoolExecutor(max(1, at_once)) as pool:
        return list(pool.map(tool, arguments))


def __getattr__(name):
    if name in _catalog():
        return Server(name)
    if name.startswith('__'):
        raise AttributeError(name)
    raise AttributeError('there is no server %r; there are %s' % (name, ', '.join(_catalog())))


def __dir__():
    return __all__ + list(_catalog())
