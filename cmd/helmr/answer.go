package main

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"helmr.dev/helmr/client/api"
)

// answerControl is how a Question is answered: with a text if it has no options.
type answerControl struct {
	Type      string         `json:"type"`
	Options   []answerOption `json:"options"`
	Multiple  bool           `json:"multiple"`
	AllowText bool           `json:"allowText"`
}

type answerOption struct {
	ID          string          `json:"id"`
	Label       string          `json:"label"`
	Value       json.RawMessage `json:"value"`
	Description string          `json:"description"`
}

func parseControl(raw json.RawMessage) (answerControl, error) {
	var c answerControl
	if len(raw) == 0 {
		return c, fmt.Errorf("the question shows no answer control any more: its history has expired")
	}
	if err := json.Unmarshal(raw, &c); err != nil {
		return c, fmt.Errorf("read answer control: %w", err)
	}
	return c, nil
}

// answer makes the answer that selects options by id and gives a text; nil means none. problem says what is wrong.
func (c answerControl) answer(ids []string, text *string) (answer json.RawMessage, problem string) {
	if c.Type == "text" {
		if len(ids) > 0 || text == nil {
			return nil, "the question takes a text and has no options"
		}
		raw, err := json.Marshal(*text)
		if err != nil {
			return nil, err.Error()
		}
		return raw, ""
	}
	type selection struct {
		ID    string          `json:"id"`
		Value json.RawMessage `json:"value"`
	}
	out := struct {
		Selected []selection `json:"selected"`
		Text     *string     `json:"text,omitempty"`
	}{Selected: []selection{}, Text: text}
	for _, wanted := range ids {
		if !slices.ContainsFunc(c.Options, func(o answerOption) bool { return o.ID == wanted }) {
			return nil, fmt.Sprintf("%q is not an option; the options are %s", wanted, c.ids())
		}
	}
	for _, o := range c.Options { // in the order of declaration, whatever the order of the flags
		if slices.Contains(ids, o.ID) {
			out.Selected = append(out.Selected, selection{o.ID, o.Value})
		}
	}
	switch {
	case len(out.Selected) > 1 && !c.Multiple:
		return nil, "the question takes one option"
	case text != nil && !c.AllowText:
		return nil, "the question takes no text, only one of its options: " + c.ids()
	}
	raw, err := json.Marshal(out)
	if err != nil {
		return nil, err.Error()
	}
	return raw, ""
}

func (c answerControl) ids() string {
	ids := make([]string, 0, len(c.Options))
	for _, o := range c.Options {
		ids = append(ids, clean(o.ID))
	}
	return strings.Join(ids, ", ")
}

// easyAnswer are the flags that answer a Question without JSON.
type easyAnswer struct {
	text     string
	selected []string
}

func (e *easyAnswer) register(c *cobra.Command) {
	c.Flags().StringVar(&e.text, "text", "", "answer with a text; for a choice one of your own, if it allows that")
	c.Flags().StringArrayVar(&e.selected, "select", nil, "ID of an option to choose (repeatable)")
}

func (e *easyAnswer) given(cmd *cobra.Command) bool {
	return cmd.Flags().Changed("text") || cmd.Flags().Changed("select")
}

// make makes the answer to the Question; instead are the flags that cannot stand beside these.
func (e *easyAnswer) make(cmd *cobra.Command, instead *valueFlags, ask func() (api.Question, error)) (json.RawMessage, error) {
	if cmd.Flags().Changed(instead.json) || cmd.Flags().Changed(instead.file) {
		return nil, usageErrorf("%s takes --text and --select, or one of --%s and --%s", cmd.CommandPath(), instead.json, instead.file)
	}
	q, err := ask()
	if err != nil {
		return nil, err
	}
	c, err := parseControl(q.AnswerControl)
	if err != nil {
		return nil, err
	}
	var text *string
	if cmd.Flags().Changed("text") {
		text = &e.text
	}
	answer, problem := c.answer(e.selected, text)
	if problem != "" {
		return nil, usageErrorf("%s", problem)
	}
	return answer, nil
}

// typed makes the answer of a line that a person typed: the text itself, or for a choice the numbers or ids of options;
// anything else is the person's own text if the choice allows one.
func (c answerControl) typed(line string) (answer json.RawMessage, problem string) {
	line = strings.TrimSpace(line)
	if c.Type == "text" {
		return c.answer(nil, &line)
	}
	var ids []string
	for _, word := range strings.FieldsFunc(line, func(r rune) bool { return r == ',' || r == ' ' || r == '\t' }) {
		n, err := strconv.Atoi(word)
		i := slices.IndexFunc(c.Options, func(o answerOption) bool { return o.ID == word })
		switch {
		case i >= 0:
			ids = append(ids, word)
		case err == nil && n >= 1 && n <= len(c.Options):
			ids = append(ids, c.Options[n-1].ID)
		case c.AllowText:
			return c.answer(nil, &line)
		default:
			return nil, fmt.Sprintf("%q is not an option: give a number from 1 to %d", clean(word), len(c.Options))
		}
	}
	return c.answer(ids, nil)
}

// describeQuestion writes a Question for people: the prompt, then its options with their numbers.
func describeQuestion(prompt, control json.RawMessage) string {
	var b strings.Builder
	b.WriteString(clean(contentText(prompt)))
	c, err := parseControl(control)
	if err != nil || c.Type == "text" {
		return b.String()
	}
	for i, o := range c.Options {
		fmt.Fprintf(&b, "\n  %d. %s", i+1, clean(o.Label))
		if o.Label != o.ID {
			fmt.Fprintf(&b, " (%s)", clean(o.ID))
		}
		if o.Description != "" {
			fmt.Fprintf(&b, "  %s", clean(o.Description))
		}
	}
	return b.String()
}

// hint says in a few words what to type.
func (c answerControl) hint() string {
	switch {
	case c.Type == "text":
		return "Answer"
	case c.Multiple && c.AllowText:
		return "Numbers, or a text"
	case c.Multiple:
		return "Numbers"
	case c.AllowText:
		return "Number, or a text"
	}
	return "Number"
}

// howToAnswer gives the flags that answer a Question of this control.
func howToAnswer(raw json.RawMessage) string {
	c, err := parseControl(raw)
	if err != nil || len(c.Options) == 0 {
		return "--text TEXT"
	}
	how := "--select " + strings.ReplaceAll(c.ids(), ", ", "|")
	if c.AllowText {
		how += "  (or --text TEXT)"
	}
	return how
}
