"""The names of IPython.display that code uses to show values."""

from sandbox_display import (
    HTML, JSON, SVG, Audio, Code, DisplayHandle, DisplayObject, FileLink, FileLinks, IFrame, Image, Javascript, Latex, Markdown, Math,
    Pretty, TextDisplayObject, Video, YouTubeVideo, clear_output, display, publish_display_data, update_display)

display_html = display_markdown = display_svg = display_png = display_jpeg = display_pretty = display_json = display_latex = display
display_javascript = display_pdf = display


def set_matplotlib_formats(*formats, **options):
    """Does nothing: figures are images of the kind png."""


set_matplotlib_close = set_matplotlib_formats

__all__ = [
    'Audio', 'Code', 'DisplayHandle', 'DisplayObject', 'FileLink', 'FileLinks', 'HTML', 'IFrame', 'Image', 'JSON', 'Javascript', 'Latex', 'Markdown',
    'Math', 'Pretty', 'SVG', 'TextDisplayObject', 'Video', 'YouTubeVideo', 'clear_output', 'display', 'display_html', 'display_javascript', 'display_jpeg',
    'display_json', 'display_latex', 'display_markdown', 'display_pdf', 'display_pretty', 'display_png', 'display_svg', 'publish_display_data', 'set_matplotlib_close',
    'set_matplotlib_formats', 'update_display']
