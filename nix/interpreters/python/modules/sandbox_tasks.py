"""Gives a session one event loop, as a notebook has one.

The driver loads this module when code has imported asyncio or awaits something
itself. Code that awaits nothing finds the loop as the running one, so that
asyncio.create_task works there; the loop turns while code awaits and between
calls. asyncio.run and its kind work as they do in a program.
"""

import asyncio
import functools

runner = asyncio.Runner()


def callable_inside(function):
    """Makes a function that runs an event loop callable from code that finds the
    session's loop as the running one, although it does not turn."""

    @functools.wraps(function)
    def call(*args, **kwargs):
        current = asyncio._get_running_loop()
        if current is None or current is not runner.get_loop() or current.is_running():
            return function(*args, **kwargs)
        asyncio._set_running_loop(None)
        try:
            return function(*args, **kwargs)
        finally:
            asyncio._set_running_loop(current)

    return call


for owner, name in ((asyncio, 'run'), (asyncio.runners, 'run'), (asyncio.Runner, 'run'),
                    (asyncio.BaseEventLoop, 'run_forever'), (asyncio.BaseEventLoop, 'run_until_complete')):
    setattr(owner, name, callable_inside(getattr(owner, name)))


def other_loop(function):
    """Makes asyncio.set_event_loop hide the session's loop from the rest of the
    call: what the code makes then is for the loop that it has set."""

    @functools.wraps(function)
    def set_event_loop(loop):
        function(loop)
        current = asyncio._get_running_loop()
        if loop is not None and current is not None and current is runner.get_loop() and not current.is_running():
            asyncio._set_running_loop(None)

    return set_event_loop


asyncio.set_event_loop = asyncio.events.set_event_loop = other_loop(asyncio.set_event_loop)


def begin():
    """Shows the loop to code that awaits nothing, in this thread."""
    asyncio._set_running_loop(runner.get_loop())


def end():
    asyncio._set_running_loop(None)


def unfinished():
    """The tasks that have not ended."""
    return asyncio.all_tasks(runner.get_loop())


def turn(descriptor):
    """Lets the tasks that calls have left go on until a descriptor can be read."""
    if not unfinished():
        return
    loop = runner.get_loop()
    loop.add_reader(descriptor, loop.stop)
    try:
        loop.run_forever()
    finally:
        loop.remove_reader(descriptor)


def finish():
    """Waits until all tasks have ended."""
    while tasks := unfinished():
        runner.get_loop().run_until_complete(asyncio.wait(tasks))
