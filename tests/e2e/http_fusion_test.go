package e2e

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
)

// post sends a request of SandboxFusion and returns the answer.
func (s *httpServer) post(t *testing.T, path, token, body string) (status int, answer map[string]any, text string) {
	t.Helper()
	r := must.Get(http.NewRequestWithContext(t.Context(), http.MethodPost, s.url+path, strings.NewReader(body)))(t)
	r.Header.Set("Content-Type", "application/json")
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	response := must.Get(http.DefaultClient.Do(r))(t)
	defer response.Body.Close()
	data := must.Get(io.ReadAll(response.Body))(t)
	_ = json.Unmarshal(data, &answer) // a refusal is text
	return response.StatusCode, answer, string(data)
}

func TestHTTP_RunCode(t *testing.T) {
	t.Parallel()
	s := startHTTP(t, []string{"alice"}, map[string]any{"run_code": true}, map[string]any{"timeout_seconds": 60})
	for body, want := range map[string]map[string]any{
		`{"code": "print(input())\n1", "language": "python", "stdin": "typed"}`:               {"status": "Success", "run": "Finished", "code": 0.0, "stdout": "typed\n"},
		`{"code": "echo [exit status 0]; exit 3", "language": "bash"}`:                        {"status": "Failed", "run": "Finished", "code": 3.0, "stdout": "[exit status 0]\n"},
		`{"code": "const x: number = 5; console.log(x)", "language": "typescript"}`:           {"status": "Success", "run": "Finished", "code": 0.0, "stdout": "5\n"},
		`{"code": "echo begun; sleep 50", "language": "bash", "run_timeout": 1}`:              {"status": "Failed", "run": "TimeLimitExceeded", "code": nil, "stdout": "begun\n"},
		`{"code": "cat a/b", "language": "bash", "files": {"a/b": "dGV4dA==", "none": null}}`: {"status": "Success", "run": "Finished", "code": 0.0, "stdout": "text"},
		`{"code": "print(1)", "language": "cobol"}`:                                           {"status": "SandboxError"},
		`{"code": "print(1)", "language": "python", "files": {"/etc/x": ""}}`:                 {"status": "SandboxError"},
		`{"code": "print(1)", "language": "python", "files": {"x": "?"}}`:                     {"status": "SandboxError", "run": "Error", "code": nil, "stdout": ""},
		`{"code": "printf x >b; mkdir -p d; printf '\\377' >d/c", "language": "bash", "fetch_files": ["b", "d/c", "none", "/etc/passwd"]}`: {
			"status": "Success", "run": "Finished", "code": 0.0, "stdout": "", "files": map[string]any{"b": "eA==", "d/c": "/w=="}},
	} {
		status, answer, text := s.post(t, "/run_code", s.tokens["alice"], body)
		got := map[string]any{"status": answer["status"]}
		if run, ok := answer["run_result"].(map[string]any); ok {
			got["run"], got["code"], got["stdout"] = run["status"], run["return_code"], run["stdout"]
		}
		if files, ok := answer["files"].(map[string]any); ok && len(files) > 0 {
			got["files"] = files
		}
		if diff := cmp.Diff(want, got); diff != "" || status != http.StatusOK {
			t.Errorf("%s: status %d, %s\n%s", body, status, text, diff)
		}
		if want["status"] == "SandboxError" && answer["message"] == "" {
			t.Errorf("%s: there is no message", body)
		}
	}
	for body, want := range map[string]int{"{": 422, `{"code": 5}`: 422} {
		if status, _, text := s.post(t, "/run_code", s.tokens["alice"], body); status != want {
			t.Errorf("%s: status %d, %s, want %d", body, status, text, want)
		}
	}
	for _, token := range []string{"", "wrong"} {
		if status, _, text := s.post(t, "/run_code", token, `{"code": "1", "language": "python"}`); status != http.StatusUnauthorized {
			t.Errorf("token %q: status %d, %s", token, status, text)
		}
	}
	status, answer, text := s.post(t, "/run_jupyter", s.tokens["alice"],
		`{"cells": ["a = 'x'", "a", "print(a)", "1/0", "open('f', 'w').write(a)"], "files": {"in": "eA=="}, "fetch_files": ["f", "in"]}`)
	var got struct {
		Cells []struct {
			Stdout  string
			Display []map[string]string
			Error   []struct{ EName string }
		}
		Files map[string]string
	}
	must.Do(t, json.Unmarshal([]byte(text), &got))
	if status != 200 || answer["status"] != "Success" || len(got.Cells) != 5 || got.Cells[0].Stdout != "" || got.Cells[1].Stdout != "" ||
		got.Cells[1].Display[0]["text/plain"] != "'x'" || got.Cells[2].Stdout != "x\n" || got.Cells[3].Error[0].EName != "ZeroDivisionError" ||
		got.Files["f"] != "eA==" || got.Files["in"] != "eA==" {
		t.Errorf("run_jupyter: status %d, %s", status, text)
	}
	status, answer, text = s.post(t, "/run_jupyter", s.tokens["alice"], `{"cells": ["1", "import time; time.sleep(50)", "2"], "total_timeout": 2}`)
	if status != 200 || answer["status"] != "Failed" {
		t.Errorf("run_jupyter without time: status %d, %s", status, text)
	}
	// Without the option there is nothing.
	other := startHTTP(t, []string{"alice"}, nil, nil)
	if status, _, text := other.post(t, "/run_code", other.tokens["alice"], `{"code": "1", "language": "python"}`); status != http.StatusNotFound {
		t.Errorf("without the option: status %d, %s", status, text)
	}
}
