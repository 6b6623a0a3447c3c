# Two servers in Nomad 1.7 or later, each on a machine of its own, by the driver raw_exec, which
# is off until a client's configuration allows it. The server is what Nix built, installed on
# each machine at the path below, with a user of its own (nix-sandbox-mcp.sysusers).
#
# Before: put the lines of a file of tokens into a variable:
#   nomad var put nomad/jobs/nix-sandbox-mcp tokens=@tokens
# HAProxy leads each principal to its server (haproxy.cfg); `nomad service info nix-sandbox-mcp`
# has the addresses.
job "nix-sandbox-mcp" {
  type = "service"

  # One server ends at a time, and the next when HAProxy has had time to see the new one.
  update {
    max_parallel     = 1
    min_healthy_time = "10s"
    healthy_deadline = "2m"
  }

  group "servers" {
    count = 2

    constraint {
      operator = "distinct_hosts"
      value    = "true"
    }

    network {
      port "http" {
        static = 8080
      }
    }

    service {
      name     = "nix-sandbox-mcp"
      provider = "nomad"
      port     = "http"

      check {
        type     = "http"
        path     = "/readyz"
        interval = "5s"
        timeout  = "2s"
      }
    }

    task "server" {
      driver = "raw_exec"
      user   = "nix-sandbox-mcp"

      # More than a server takes to end.
      kill_timeout = "60s"

      config {
        command = "/usr/bin/nix-sandbox-mcp"
        args    = ["serve", "--http", "${NOMAD_ADDR_http}"]
      }

      env {
        NIX_SANDBOX_TOKENS = "${NOMAD_SECRETS_DIR}/tokens"
        # The name that clients use.
        NIX_SANDBOX_HOSTS = "sandbox.example"
        HOME              = "${NOMAD_TASK_DIR}"
        XDG_STATE_HOME    = "${NOMAD_TASK_DIR}/state"
      }

      # It has hashes, which the server's user must be able to read.
      template {
        data          = "{{ with nomadVar \"nomad/jobs/nix-sandbox-mcp\" }}{{ .tokens }}{{ end }}\n"
        destination   = "${NOMAD_SECRETS_DIR}/tokens"
        perms         = "0444"
        change_mode   = "signal"
        change_signal = "SIGHUP"
      }

      # What the scheduler keeps free for all sandboxes of the server together.
      resources {
        cpu    = 2000
        memory = 8192
      }
    }
  }
}
