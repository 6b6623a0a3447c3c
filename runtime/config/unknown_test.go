package config

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestSlips(t *testing.T) {
	got := Slips([]string{
		"PROJECT_DRI=/x", "NIX_SANDBOX_OUTPUT=/y", "SESSION_KEEP_FILE=1", "NIX_SANDBOX_INBOXX=/z", "SESSION_MIX=3",
		// Others are somebody else's, or right.
		"PROJECT_DIR=/x", "PROJECT=1", "SESSION_MANAGER=x", "NIX_SANDBOX_BUILDS=/b", "PATH=/bin", "PROJECT_MODES_X=1", "", "=",
	})
	want := []string{
		"the variable NIX_SANDBOX_INBOXX means nothing here: NIX_SANDBOX_INBOX was probably meant",
		"the variable NIX_SANDBOX_OUTPUT means nothing here: NIX_SANDBOX_OUTPUTS was probably meant",
		"the variable PROJECT_DRI means nothing here: PROJECT_DIR was probably meant",
		"the variable SESSION_KEEP_FILE means nothing here: SESSION_KEEP_FILES was probably meant",
		"the variable SESSION_MIX means nothing here: SESSION_MAX was probably meant",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
