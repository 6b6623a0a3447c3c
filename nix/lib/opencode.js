// Has opencode's own shell commands run in the sandbox. If that cannot be, none runs.
import { spawnSync } from "node:child_process"

export const NixSandbox = async () => ({
  "tool.execute.before": async (input, output) => {
    if (input.tool !== "bash") return
    const asked = { session_id: input.sessionID, tool_name: input.tool, tool_input: output.args }
    const options = { input: JSON.stringify(asked), encoding: "utf8", maxBuffer: 16 << 20, timeout: 15000 }
    const hook = spawnSync("@COMMAND@", ["hook", "opencode"], options)
    if (hook.status !== 0) throw new Error(hook.stderr || "the command was not run: its hook failed")
    const changed = JSON.parse(hook.stdout)
    if (!changed?.command?.includes(" exec --mark ")) throw new Error("the command was not run: its hook failed")
    Object.assign(output.args, changed)
  },
})
