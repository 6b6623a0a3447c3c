"sha256-VEx4/NwD0TdmD+pprU1q0tlp7YmBdtESNU1u3wbTkSk="
