"""Sentences with the server that they lead to: what routing is judged by.

Each example is a step: what the user asked, what the model wrote before its call, and
the server it then needed ("" for steps that need none). The users don't name tools, and
seldom servers. Written before any weight of the router was chosen; the odd ones were used
to choose, the even ones only to report (`examples(held_out=True)`).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from headstart.core.events import ResourceRegistered, ToolProfile
from headstart.ids import PrincipalId, ResourceId

__all__ = ["Example", "examples", "servers"]

_SERVERS = Path(__file__).with_name("servers.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One step and the server it led to, "" for none."""

    server: str
    request: str
    plan: str


_STEPS = """
time | My colleague in Osaka wants to meet at half past four her afternoon. When is that for me in Boston?
     > I'll work out what 16:30 in Asia/Tokyo is in the America/New_York timezone.
time | How late is it in Nairobi right now?
     > Let me look up the current local time there.
time | If the webinar begins at 9 in the morning Pacific, when should people in Berlin dial in?
     > Converting 09:00 from the Los Angeles timezone to Europe/Berlin.
time | Does the support desk in Sydney still answer at this hour?
     > I need to see what the clock says in Australia/Sydney.
time | Schedule: 14:00 London, what would our Chennai team see in their calendars?
     > I'll translate that between the two timezones, taking daylight saving into account.
time | Has the new day already started in Auckland?
     > Checking the current date and time in Pacific/Auckland.
git | Who touched the parser last week and why?
    > I'll go through the commit history of the repository and look at the authors.
git | I changed a couple of things this morning, what exactly is different now?
    > Let me see the unstaged changes in the working tree with a diff.
git | Put my changes on a separate line of work called spike and switch me over to it.
    > I'll create a new branch and check it out.
git | Undo what I have added to the index, I want to sort it again.
    > I'm going to unstage everything that was staged for the commit.
git | What's the difference between main and the release line?
    > Comparing the two branches of the repo.
git | Record these edits with a message about the timeout fix.
    > First I'll stage the modified files, then commit them.
sqlite | Which five customers bought the most last quarter?
       > I'll query the orders table, sum by customer and sort descending.
sqlite | How are the columns of the invoices table called and what types do they have?
       > I'll describe the table schema in the database.
sqlite | Add a place to keep discount codes, with an expiry date for each.
       > I need a CREATE TABLE statement with the right columns.
sqlite | Correct the spelling of Müller in all rows of the clients list in the db.
       > I'll run an UPDATE statement with a WHERE clause against the database.
sqlite | What do we store at all in that data file, give me the tables.
       > Listing the tables in the SQLite database.
sqlite | Average basket value per month, please, from the sales data.
       > A SELECT with GROUP BY over the orders should give that.
excel | Make the quarterly figures easier to compare: totals by region and product.
      > I'll add a pivot table to the workbook on a new worksheet.
excel | The budget sheet should add up columns B to F on its own.
      > I'll write a SUM formula into those cells of the spreadsheet.
excel | Give the header row of the sheet a grey background and merge A1 to D1.
      > Formatting the cell range and merging cells in the worksheet.
excel | I'd like to see sales per month as bars next to the numbers.
      > I'll insert a bar chart into the worksheet.
excel | Start a fresh file for the expense report with one tab per employee.
      > Creating a workbook and adding the worksheets.
excel | Are there any wrong references in the calculations of the forecast.xlsx?
      > I'll read the formulas in the cells and validate the syntax.
word | Draft the offer letter for Ms Okafor and save it as offer.docx.
     > I'll create a Word document with a heading and the paragraphs.
word | Replace the old company name everywhere in the contract, keep the layout.
     > Search and replace across the paragraphs of the document.
word | The minutes need a numbered outline and a page for signatures at the end.
     > I'll insert headings and a page break at the end of the docx.
word | Add a remark at the bottom of page two saying where the figure comes from.
     > I'm adding a footnote to that paragraph of the Word document.
word | How many words has my thesis chapter, and what are its sections called?
     > Getting the outline of the document and its word count.
word | Protect the agreement so that nobody can change it without the password.
     > I'll set a password protection on the docx.
powerpoint | Turn these findings into something I can present on Thursday.
           > I'll create a presentation with a title slide and bullet points.
powerpoint | The deck needs our revenue by year as a picture on page three.
           > Adding a column chart to slide 3 of the presentation.
powerpoint | Make all the slides look the same: blue titles, white background.
           > I'll apply a color theme to the presentation and its slide layouts.
powerpoint | Five pages for the kick-off, one per team, with photos.
           > I'll add slides from a template and place the images.
powerpoint | Put the speaker's remarks under each page.
           > Let me fill the notes of each slide.
powerpoint | Shorten the bullet points of the pitch, investors don't read.
           > I'll extract the text of the slides and edit the bullet points.
pdf | What does the lease say about the notice period? It's in lease.pdf.
    > I'll extract the text from the PDF as markdown.
pdf | Get me the tables out of the annual report, the scanned one with the images.
    > Converting the PDF pages to markdown, with images saved apart.
pdf | Summarise this paper: attention.pdf
    > I'll read the PDF first.
pdf | The manual has 300 pages in PDF, I only need the chapter about valves.
    > Let me get the markdown of the pdf and look for the chapter.
pdf | Compare the two versions of the brochure, both are PDFs.
    > I'll extract both PDF files and compare them.
pdf | Is there a signature block in agreement.pdf?
    > I need the text of the PDF for that.
markdown | I have the handbook as an .epub and need plain text I can paste in the wiki.
         > I'll convert the resource at that URI to markdown.
markdown | Make https://example.org/guide readable for our docs.
         > Converting the web page to markdown from its http URI.
markdown | Our notes are in a mix of formats, I want them all in one readable form.
         > I'll convert each of them to Markdown.
markdown | Transform report.html so that it can go in the README.
         > I'll convert the file: URI to markdown.
markdown | Take the attached data URI and give me its text with headings.
         > The data: URI can be converted to markdown directly.
markdown | Bring the audio transcript and the slides into one common text format.
         > I'll run a markdown conversion on both.
sympy | What's the area under x^2·e^(-x) from zero to infinity?
      > I'll integrate the expression symbolically.
sympy | Find the values of x for which x^3 - 6x^2 + 11x - 6 vanishes.
      > Solving the polynomial equation for its roots.
sympy | Can you tell if this matrix can be inverted, and what are its eigenvalues?
      > I'll compute the determinant and the eigenvalues of the matrix.
sympy | How fast does sin(x)/x fall off near zero, give me the first terms.
      > A Taylor series expansion around zero.
sympy | Bring (a^2-b^2)/(a-b) in its shortest form.
      > I'll simplify and factor the algebraic expression.
sympy | What does the slope of ln(x)·x^3 look like?
      > I need the derivative with respect to x.
filesystem | What's in my downloads, and what could go?
           > I'll list the directory with sizes.
filesystem | Give the config of the build another name, settings.old.
           > I'll move the file within the allowed directories.
filesystem | Show me how the project is laid out.
           > Let me get the directory tree.
filesystem | Keep this text in notes/today.txt.
           > I'll write the file to disk.
filesystem | Where did I leave the tax documents on this machine?
           > Searching files under the allowed directories for that pattern.
filesystem | Change line 12 of the README to say version 3.
           > I'll make a line-based edit to the text file.
browser | See if the login on our staging site works with the test account.
        > I'll navigate to the page, type the credentials into the form and click the button.
browser | What does the shop look like on a phone? I'd like a picture.
        > I'll resize the browser window and take a screenshot.
browser | Fill in the registration form on the fair's website for me.
        > Let me take a snapshot of the page and fill the form fields.
browser | Why does the dashboard stay blank? Open it and look what it complains about.
        > I'll open the page and read the console messages and network requests.
browser | Choose the cheapest shipping in the drop-down and go on to the payment.
        > I'll select the option in the dropdown and click on.
browser | Press through the cookie banner and tell me what's beneath.
        > I'll click the accept button in a new tab.
memory | Remember that Priya prefers tea and works on the compiler team.
       > I'll create an entity for Priya with these observations.
memory | What do you know about my sister?
       > Let me search the knowledge graph for that person.
memory | Anna has left the company, forget what links her to it.
       > I'll delete the relation between the two entities.
memory | Tom is now Lisa's manager, keep that in mind.
       > Adding a relation between these entities to the knowledge graph.
memory | Note for later: the Lisbon office moves in May.
       > I'll add an observation to the entity of the Lisbon office.
memory | Tell me everything you have kept about our suppliers.
       > Reading the whole knowledge graph.
- | Write a haiku about autumn.
  > Leaves drift on the pond.
- | What is the capital of Mongolia?
  > The capital is Ulaanbaatar.
- | Explain recursion to a ten-year-old.
  > Imagine two mirrors that face each other.
- | Thanks, that was all for today!
  > You're welcome, have a good evening.
- | Which is healthier, butter or margarine? I need a short answer.
  > It depends on the fat that it is made of.
- | Help me find a friendly tone for turning down an invitation.
  > You could thank them first and then be brief about the reason.
- | Give me three names for a bakery near a railway station.
  > How about Platform Bread, The Morning Train, or Sleeper and Crumb?
- | Is it rude to send a message to my boss late at night?
  > Most people would not mind if it can wait until the morning.
- | Translate "the meeting is moved to Friday" into French.
  > La réunion est déplacée à vendredi.
- | I feel tired all the time, what could be the reason?
  > There are many possible causes, from sleep to diet.
- | Which role does Banquo play in Macbeth?
  > He is the foil who hears the same prophecy and does not act on it.
- | What are good questions to ask in a job interview?
  > Ask how success is measured and what the team struggles with.
"""


def examples(*, held_out: bool) -> tuple[Example, ...]:
    """Return the examples for reporting (held out) or those that weights may be chosen by."""
    return tuple(example for number, example in enumerate(_parse()) if (number % 2 == 1) == held_out)


def servers(principal: PrincipalId) -> tuple[ResourceRegistered, ...]:
    """Return the twelve servers of the examples, with the tool and argument names that real ones have."""
    known = json.loads(_SERVERS.read_text(encoding="utf-8"))
    return tuple(
        ResourceRegistered(
            at_s=0.0,
            principal=principal,
            resource=ResourceId(name),
            description=server["description"],
            tools=tuple(ToolProfile(name=tool, argument_names=tuple(args)) for tool, args in server["tools"].items()),
        )
        for name, server in known.items()
    )


def _parse() -> list[Example]:
    lines = [line.strip() for line in _STEPS.strip().splitlines()]
    parsed: list[Example] = []
    for asked, planned in zip(lines[::2], lines[1::2], strict=True):
        server, _, request = asked.partition("|")
        plan = planned.removeprefix(">").strip()
        parsed.append(Example(server=server.strip().removeprefix("-"), request=request.strip(), plan=plan))
    return parsed
