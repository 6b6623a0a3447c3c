"""Has the class by which notebooks choose which values a cell shows."""


class InteractiveShell:
    # 'all' shows the values of all expressions, everything else the last one.
    ast_node_interactivity = 'last_expr'

    @staticmethod
    def instance():
        import sandbox_shell
        return sandbox_shell.shell
