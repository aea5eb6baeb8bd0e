package main

import (
	"encoding/json"

	"github.com/spf13/cobra"

	"helmr.dev/helmr/client/api"
	"helmr.dev/helmr/internal/id"
)

// dataFlags are the ways to give the data of a Message.
func dataFlags() *valueFlags {
	return &valueFlags{text: "text", textUse: "data as one text", json: "data-json", jsonUse: `data as JSON, for example '[{"type":"text","text":"Stop at the tests"}]'`, file: "data-file"}
}

func (a *app) sessionSend() *cobra.Command {
	data := dataFlags()
	var req api.SendRequest
	c := &cobra.Command{
		Use:   "send ID",
		Short: "Give a message to the running turn, or queue it as a turn",
		Long: `Gives the data to the running turn if that still takes messages, otherwise queues it as a new turn. The answer says
which of the two it was.`,
		Example: `  helmr session send SESSION --text "Leave the tests alone"`,
		Args:    oneArg("the ID of a session"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkID("session", args[0]); err != nil {
				return err
			}
			var err error
			if req.Data, err = data.read(cmd); err != nil {
				return err
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			receipt, err := c.Send(cmd.Context(), args[0], req)
			if err != nil {
				return err
			}
			return a.show(cmd, receipt, func(w *text) {
				w.line("%s", receipt.Kind)
				w.line("turn_id: %s", receipt.TurnID)
				if receipt.MessageID != "" {
					w.line("message_id: %s", receipt.MessageID)
				}
			})
		},
	}
	data.register(c)
	c.Flags().StringVar(&req.IdempotencyKey, "idempotency-key", "", "repeating the command with the same key has no second effect")
	return c
}

func (a *app) turnSend() *cobra.Command {
	data := dataFlags()
	var req api.MessageRequest
	c := &cobra.Command{
		Use:     "send SESSION TURN",
		Short:   "Give a message to a running turn",
		Long:    "Gives the data to one running turn. It is refused once that turn takes no more messages.",
		Example: `  helmr session turn send SESSION TURN --text "Leave the tests alone"`,
		Args:    sessionAndTurn,
		RunE: func(cmd *cobra.Command, args []string) error {
			var err error
			if req.Data, err = data.read(cmd); err != nil {
				return err
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			receipt, err := c.SendMessage(cmd.Context(), args[0], args[1], req)
			if err != nil {
				return err
			}
			return a.show(cmd, receipt, func(w *text) { w.line("message_id: %s", receipt.MessageID) })
		},
	}
	data.register(c)
	c.Flags().StringVar(&req.IdempotencyKey, "idempotency-key", "", "repeating the command with the same key has no second effect")
	return c
}

func (a *app) questionCommand() *cobra.Command {
	return groupCommand("question", "See and answer what a turn asks",
		"  helmr session turn question list SESSION TURN\n  helmr session turn question respond SESSION TURN QUESTION --answer-json true",
		a.questionList(), a.questionGet(), a.questionRespond())
}

func (a *app) questionList() *cobra.Command {
	var page pageFlags
	c := &cobra.Command{
		Use: "list SESSION TURN", Short: "List the questions of a turn, oldest first", Example: "  helmr session turn question list SESSION TURN", Args: sessionAndTurn,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := page.check(); err != nil {
				return err
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			found, err := c.ListQuestions(cmd.Context(), args[0], args[1], page.cursor, page.limit)
			if err != nil {
				return err
			}
			defer a.more(cmd, found.NextCursor)
			return a.show(cmd, found, func(w *text) {
				w.row("ID", "STATUS", "CREATED", "PROMPT", "ANSWER")
				for _, q := range found.Questions {
					w.row(q.ID, q.Status, when(q.CreatedAt), brief(clean(contentText(q.Prompt)), 60), brief(clean(compact(q.Answer)), 40))
				}
			})
		},
	}
	page.register(c)
	return c
}

// sessionTurnQuestion are the arguments of commands about one Question.
func sessionTurnQuestion(cmd *cobra.Command, args []string) error {
	if len(args) != 3 {
		return usageErrorf("%s needs the IDs of a session, of one of its turns and of a question of that turn", cmd.CommandPath())
	}
	if err := sessionAndTurn(cmd, args[:2]); err != nil {
		return err
	}
	return checkID("question", args[2])
}

func (a *app) questionGet() *cobra.Command {
	return &cobra.Command{
		Use: "get SESSION TURN QUESTION", Short: "Show a question", Example: "  helmr session turn question get SESSION TURN QUESTION --json", Args: sessionTurnQuestion,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client()
			if err != nil {
				return err
			}
			q, err := c.GetQuestion(cmd.Context(), args[0], args[1], args[2])
			if err != nil {
				return err
			}
			return a.showQuestion(cmd, q)
		},
	}
}

func (a *app) showQuestion(cmd *cobra.Command, q api.Question) error {
	return a.show(cmd, q, func(w *text) {
		w.field("id", q.ID)
		w.field("status", q.Status)
		w.field("prompt", clean(contentText(q.Prompt)))
		w.field("wants", clean(compact(q.AnswerControl)))
		w.field("answer", clean(compact(q.Answer)))
		w.field("asked", when(q.CreatedAt))
		w.field("answered", whenOpt(q.RespondedAt))
		w.field("withdrawn", whenOpt(q.CancelledAt))
	})
}

func (a *app) questionRespond() *cobra.Command {
	answer := &valueFlags{json: "answer-json", jsonUse: `answer as JSON, for example true or '"the second one"'`, file: "answer-file"}
	var responseID string
	var easy easyAnswer
	c := &cobra.Command{
		Use:   "respond SESSION TURN QUESTION",
		Short: "Answer a question",
		Long: `Answers a question; what kind of answer it wants is shown by question get. The first answer counts. Repeating one with
the same --response-id has no second effect. --text and --select make the answer for you; the JSON of an answer to a
choice is {"selected":[{"id":...,"value":...}],"text":...} with the values that the options have.`,
		Example: "  helmr session turn question respond SESSION TURN QUESTION --select main\n  helmr session turn question respond SESSION TURN QUESTION --answer-file answer.json",
		Args:    sessionTurnQuestion,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client()
			if err != nil {
				return err
			}
			var value json.RawMessage
			if easy.given(cmd) {
				value, err = easy.make(cmd, answer, func() (api.Question, error) { return c.GetQuestion(cmd.Context(), args[0], args[1], args[2]) })
			} else {
				value, err = answer.read(cmd)
			}
			if err != nil {
				return err
			}
			if responseID == "" {
				responseID = id.New()
			}
			q, err := c.Respond(cmd.Context(), args[0], args[1], args[2], api.RespondRequest{Answer: value, ResponseID: responseID})
			if err != nil {
				return err
			}
			return a.showQuestion(cmd, q)
		},
	}
	answer.register(c)
	easy.register(c)
	c.Flags().StringVar(&responseID, "response-id", "", "name of this response, for repeating it (default: a new one)")
	return c
}
