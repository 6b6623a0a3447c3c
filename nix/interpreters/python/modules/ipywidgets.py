"""Stands where there is no ipywidgets. No hand moves a control here: each widget keeps the
value that it begins with and is shown as a line of text, and interact calls its function once.

A real ipywidgets is found first: this folder is the last of the module path.
"""

import functools
import inspect
import types

__version__ = '0.0'

# What `from ipywidgets import *` gives: __getattr__ makes the controls when they are named.
__all__ = '''
    Widget fixed interact interact_manual interactive interactive_output link jslink dlink jsdlink
    Accordion BoundedFloatText BoundedIntText Box Button Checkbox ColorPicker Combobox DatePicker
    Dropdown FloatLogSlider FloatProgress FloatRangeSlider FloatSlider FloatText GridBox HBox HTML
    HTMLMath Image IntProgress IntRangeSlider IntSlider IntText Label Layout Output Password Play
    RadioButtons Select SelectMultiple SelectionRangeSlider SelectionSlider Tab Text Textarea
    ToggleButton ToggleButtons Valid VBox
'''.split()


class Widget:
    """A control of any kind. What the code sets is kept, and no event ever comes."""

    description = ''

    def __init__(self, *arguments, **options):
        self.style, self.layout = types.SimpleNamespace(), types.SimpleNamespace()
        self.__dict__.update(options)
        if arguments:
            self.children = arguments[0]
        if 'value' not in options:
            choices = options.get('options')
            self.value = first(choices) if choices else options.get('min', False if 'Button' in type(self).__name__ else 0 if 'min' in options else None)

    def __repr__(self):
        parts = [repr(child) for child in getattr(self, 'children', ())]
        if self.value is not None:
            parts.append('value=%r' % (self.value,))
        return '%s(%s)' % (type(self).__name__, ', '.join(([repr(self.description)] if self.description else []) + parts))

    def __enter__(self):
        return self

    def __exit__(self, *error):
        return None

    def nothing(self, *arguments, **options):
        pass

    observe = unobserve = unobserve_all = on_click = on_submit = on_displayed = on_msg = close = send = clear_output = set_trait = nothing

    def capture(self, **options):
        return lambda function: function


class fixed(Widget):
    def __init__(self, value, **options):
        super().__init__(value=value, **options)


def first(choices):
    """The value of the first of some choices: values, pairs of a label and a value, or a dict."""
    if isinstance(choices, dict):
        return next(iter(choices.values()))
    choice = next(iter(choices))
    return choice[1] if isinstance(choice, tuple) and len(choice) == 2 else choice


def beginning(control):
    """The value with which a control begins that is given as a widget, a value, the ends of a
    range, or choices."""
    if isinstance(control, Widget):
        return control.value
    if isinstance(control, tuple) and len(control) in (2, 3) and all(isinstance(end, (int, float)) for end in control):
        low, high = control[:2]
        middle = low + (high - low) / 2
        return int(middle) if all(isinstance(end, int) for end in control) else middle
    if isinstance(control, (list, tuple, dict)):
        return first(control)
    return control


def interactive(function, options=None, **controls):
    """A widget with the result of one call, by the values with which the controls begin."""
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.default is not parameter.empty:
            controls.setdefault(name, parameter.default)
    values = {name: beginning(control) for name, control in controls.items()}
    widget = Widget(value=None, kwargs=values, children=())
    widget.result = function(**values)
    return widget


def interact(function=None, **controls):
    if function is None:
        return lambda function: interact(function, **controls)
    result = interactive(function, **controls).result
    if result is not None:
        from IPython.display import display
        display(result)
    return function


interact_manual = interact
interact.options = lambda **options: interact


def interactive_output(function, controls):
    interactive(function, **controls)
    return Widget(value=None)


def link(*ends, **options):
    return Widget(value=None)


jslink = dlink = jsdlink = link


@functools.cache
def __getattr__(name):
    if not name[:1].isupper():
        raise AttributeError('module %r has no attribute %r' % (__name__, name))
    return type(name, (Widget,), {})
